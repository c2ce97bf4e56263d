"""A vocabulary of made-up words for GGUF files, in which any ids can be written as text. Imported, never called.

llama.cpp's tools take text, not ids. With a vocabulary whose word of an id is a space and letters that no other
has, they read the ids that are meant, whatever the model's own tokenizer would make of its text.
"""

import gguf

# Fields of a tokenizer in a file.
TOKENIZER_KEYS = [f"tokenizer.ggml.{key}" for key in ("model", "pre", "tokens", "token_type", "merges",
                                                      "add_bos_token")]


def word(index):
    letters = (chr(ord("a") + index // 26**place % 26) for place in range(4))
    return " " + "".join(letters)


def text_of(ids):
    return "".join(word(index) for index in ids)


def add_words(writer, vocab_size):
    """The tokenizer that takes words as they stand: Llama 3's, without merges and without a BOS."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([word(index).replace(" ", "Ġ") for index in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    # There has to be one. No word of theirs is taken apart, so it never applies.
    writer.add_token_merges(["a b"])
    writer.add_add_bos_token(False)
