"""Texts and ids that tokenizers are tried with, and what a GGUF file says; for test-real.py."""

import random
import struct

# Words and letters of many scripts.
WORDS = """
the quick brown fox jumps over lazy dogs don't can't we'll I'VE it's HTTPServer camelCase snake_case
straße Übermut garçon œuvre niño mañana łódź žluťoučký đường phở naïve coöperate ﬁne İstanbul ǅ
Привет мир съешь ещё этих мягких булок Καλημέρα κόσμε שלום עולם مرحبا بالعالم السَّلامُ سلام دنیا
नमस्ते दुनिया হ্যালো வணக்கம் ఉదయం ಶುಭ സുപ്രഭാതം สวัสดีชาวโลก ລາວ မင်္ဂလာပါ សួស្តី გამარჯობა Բարև ሰላም ᏣᎳᎩ
你好世界 漢字仮名交じり文 こんにちは カタカナ ﾊﾝｶｸ 안녕하세요 세계 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓂀 𠜎 Ａｂｃ １２３ ½ ² Ⅷ ٣٤ ४२
""".split()
NUMBERS = ["0", "7", "42", "365", "2024", "65536", "3.14159", "1,000,000", "0x1F", "-1e-9", "12:34:56", "007"]
CODE = """
def f(x):|    return x ** 2|for (int i = 0; i < n; ++i) {|}|#include <stdio.h>|SELECT * FROM t WHERE id = 1;
let mut v: Vec<u8> = vec![];|<div class="a">&amp;</div>|https://example.org/a?b=c&d=%20|{"key": [1, null, true]}|// ///|=>|!=|...|!!!|??
\\n\\t\\\\|$\\frac{1}{2}$|```python|**bold**|- [ ] task|#!/bin/sh|%s %d|'quoted'|"quoted"|a/b\\c|@user|#tag|e.g.,|--flag=value
""".strip("\n").replace("\n", "|").split("|")
SPACES = [" ", "  ", "   ", " " * 7, " " * 17, "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", " \n", "\n ", "\t \n", "\u00a0", "\u3000",
    "\u2003", "\u200b", "\u2028", "\u0085", "\u2581", "\u2581\u2581"]
CONTROLS = [chr(code) for code in (*range(1, 9), 11, 12, *range(14, 32), 127, 128, 133, 159, 173, 0x200d, 0x202e, 0xfeff, 0xfffd, 0xfffe, 0x10ffff)]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🫠", "✅", "☃"]
# Accents that follow their letters, letters that NFC and NFKC change, and the signs of half characters.
MARKS = ["e\u0301", "a\u0308\u0304", "n\u0303o", "\u0301", "\u1100\u1161\u11a8", "\u212b", "\u2126", "\u0958", "q\u0323\u0307", "�", "â€™", "Ã©"]
NEAR_SPECIAL = ["<s>", "</s>", "<unk>", "<|", "|>", "<|im_start|", "<0x0A>", "<0xE5>", "[INST]", "<eos", "<|endoftext|>", "<think>", "<unused7>"]


def texts(seed, n, names, is_wanted):
    """`n` texts, the same for the same seed: words, code, white space, controls, emoji, and the spelling of special tokens."""
    rng = random.Random(seed)
    kinds = [WORDS] * 6 + [NUMBERS, CODE, CODE, SPACES, CONTROLS, EMOJI, MARKS, NEAR_SPECIAL]
    if names:
        kinds.append(names)
    found = [text for text in ["", " ", "a", "\n", "\u2581", " a", "a "] if is_wanted(text)]
    while len(found) < n:
        parts = []
        for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 30])):
            part = rng.choice(rng.choice(kinds))
            if rng.random() < 0.1:
                part = part[: rng.randrange(len(part)) + 1]
            if rng.random() < 0.1:
                part = rng.choice([part.upper(), part.title(), part * 3])
            parts += [part, rng.choice(["", " ", " ", " ", rng.choice(SPACES)])]
        if is_wanted("".join(parts)):
            found.append("".join(parts))
    return found[:n]


def id_sequences(seed, n, n_vocab):
    """`n` sequences of ids, the same for the same seed; half of them of the first 512 ids, where byte tokens are."""
    rng = random.Random(seed)
    limits = [n_vocab, min(512, n_vocab)]
    return [[rng.randrange(limits[at % 2]) for _ in range(rng.choice([1, 2, 3, 5, 8, 20]))] for at in range(n)]


# Formats of a GGUF file's plain values, by their type.
PLAIN = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, LIST = 8, 9


def gguf_fields(path):
    """The metadata of a GGUF file, by name."""
    with open(path, "rb") as file:
        magic, _, _, n_fields = struct.unpack("<4sIQQ", file.read(24))
        assert magic == b"GGUF", path
        return {read_string(file): read_value(file, read_plain(file, 4)) for _ in range(n_fields)}


def read_plain(file, kind):
    return struct.unpack(PLAIN[kind], file.read(struct.calcsize(PLAIN[kind])))[0]


def read_string(file):
    return file.read(read_plain(file, 10)).decode()


def read_value(file, kind):
    if kind == STRING:
        return read_string(file)
    if kind == LIST:
        of = read_plain(file, 4)
        return [read_value(file, of) for _ in range(read_plain(file, 10))]
    return read_plain(file, kind)
