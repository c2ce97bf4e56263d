#!/usr/bin/env python3
"""Makes the tiny models of embeddings in tests/golden, with the vectors that sentence-transformers computes.

Usage: make-embedding-fixtures.py [NAME...]

It needs torch, transformers, tokenizers, safetensors and sentence-transformers. Weights are random, from fixed seeds.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import safetensors.torch
import sentence_transformers
import tokenizers
import torch
import transformers

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TEXTS = [
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "Water boils at one hundred degrees; ice melts at zero.",
    "Naïve cafés serve crème brûlée — \u4f60\u597d, \u4e16\u754c!",
    "Once upon a time, in a green valley, there lived a stubborn owl called Nilo. His best treasure was a wooden flute, "
    "which he had found under the oldest tree of the forest, and every evening he played it until the moon rose.",
]
WORDS = """the a of and to in is it on at that he was for his with as had be by not once upon time there lived green valley
stubborn owl called nil ##o best treasure wood ##en flute which found under old ##est tree forest every even ##ing play ##ed
until moon rose water boil ##s one hundred degree ; . , ! ' - — quick brown fox jump over lazy dog cafe serve creme bru ##lee
ice melt zero na ##ive 你 好 世 界""".split()


def word_piece(folder, vocab_size):
    """A vocabulary of words, letters and their continuations."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [str(d) for d in range(10)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + letters + ["##" + c for c in letters] + WORDS
    tokens = list(dict.fromkeys(tokens))
    tokens += [f"[unused{n}]" for n in range(vocab_size - len(tokens))]
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in tokens))
    words = tokenizers.BertWordPieceTokenizer({token: id for id, token in enumerate(tokens)}, lowercase=True)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ["pad", "unk", "cls", "sep", "mask"]}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words._tokenizer, **names).save_pretrained(folder)


def byte_level(folder, source, first, last):
    """The tokenizer of another tiny model, which puts `first` and `last` around texts."""
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(GOLDEN / source / name, folder)
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    around = [name for name in (first, last) if name]
    piece = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": ([piece(first)] if first else []) + [text] + ([piece(last)] if last else []),
        "pair": [text, other],
        "special_tokens": {
            name: {"id": name, "ids": [tokenizer.token_to_id(name)], "tokens": [name]} for name in around
        },
    }
    data["post_processor"] = template
    path.write_text(json.dumps(data, ensure_ascii=False))


def fill(model, seed):
    """Weights of the size that trained ones have, rounded to bf16."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name.lower() and weight.dim() == 1:
                base = 0.0 if name.endswith("bias") or "gemma" in type(model).__name__.lower() else 1.0
                weight.copy_(base + 0.1 * noise)
            else:
                weight.copy_(0.4 * noise / weight.shape[-1] ** 0.5 if weight.dim() > 1 else 0.1 * noise)
            weight.copy_(weight.to(torch.bfloat16).float())
    return model.eval()


def bert(folder):
    config = transformers.BertConfig(
        vocab_size=192, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=128)
    word_piece(folder, 192)
    return fill(transformers.BertModel(config, add_pooling_layer=False), 1), "mean", {"max_seq_length": 96}, {}, None


def nomic(folder):
    config = transformers.NomicBertConfig(
        vocab_size=192, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
        max_position_embeddings=256)
    word_piece(folder, 192)
    model = fill(transformers.NomicBertModel(config, add_pooling_layer=False), 2)
    return model, "cls", {}, {"query": "search_query: ", "document": "search_document: "}, None


def qwen3(folder):
    config = transformers.Qwen3Config(
        vocab_size=768, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=96, max_position_embeddings=512, tie_word_embeddings=True)
    byte_level(folder, "qwen3-tiny", None, "<|endoftext|>")
    return fill(transformers.Qwen3Model(config), 3), "lasttoken", {}, {"query": "Query:"}, None


def gemma3(folder):
    source = json.loads((GOLDEN / "gemma3-tiny" / "config.json").read_text())
    config = transformers.Gemma3TextConfig(
        vocab_size=source["vocab_size"], hidden_size=64, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, intermediate_size=64, max_position_embeddings=256, sliding_window=16,
        use_bidirectional_attention=True, query_pre_attn_scalar=32)
    byte_level(folder, "gemma3-tiny", "<bos>", "<eos>")
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    return fill(transformers.Gemma3TextModel(config), 4), "mean", {}, prompts, 160


MODELS = {"bert-embed-tiny": bert, "nomic-embed-tiny": nomic, "qwen3-embed-tiny": qwen3, "gemma3-embed-tiny": gemma3}


def write_json(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def make(name, folder):
    model, pooling, limit, prompts, dense = MODELS[name](folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    dim = config["hidden_size"]
    base = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    mode = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}[pooling]
    write_json(folder / "1_Pooling" / "config.json", {
        "word_embedding_dimension": dim,
        **{f"pooling_mode_{m}": m == mode for m in ["cls_token", "mean_tokens", "max_tokens", "lasttoken"]},
        "include_prompt": True,
    })
    if dense:
        generator = torch.Generator().manual_seed(9)
        for index, (rows, cols) in enumerate([(dense, dim), (dim, dense)]):
            part = folder / f"{index + 2}_Dense"
            modules.append((part.name, "Dense"))
            write_json(part / "config.json", {
                "in_features": cols, "out_features": rows, "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            })
            weight = (torch.randn(rows, cols, generator=generator) / cols ** 0.5).to(torch.bfloat16)
            safetensors.torch.save_file({"linear.weight": weight}, part / "model.safetensors")
    modules.append((f"{len(modules)}_Normalize", "Normalize"))
    write_json(folder / "modules.json", [
        {"idx": index, "name": str(index), "path": path, "type": base + kind}
        for index, (path, kind) in enumerate(modules)
    ])
    write_json(folder / "sentence_bert_config.json", {"do_lower_case": False, **limit})
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "similarity_fn_name": "cosine"})
    reference = sentence_transformers.SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    vectors = reference.encode(TEXTS)
    cases = {
        "reference": f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}",
        "texts": TEXTS,
        "ids": [reference.tokenizer(text)["input_ids"] for text in TEXTS],
        "vectors": [[round(float(x), 7) for x in vector] for vector in vectors],
    }
    if prompts:
        named = reference.encode(TEXTS[:1], prompt_name="query")[0]
        cases["query"] = [round(float(x), 7) for x in named]
    (folder / "embedding_golden.json").write_text(json.dumps(cases, ensure_ascii=False) + "\n")


def main():
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            folder.mkdir()
            make(name, folder)
            shutil.rmtree(GOLDEN / name, ignore_errors=True)
            shutil.copytree(folder, GOLDEN / name)
        print(name, sum(f.stat().st_size for f in (GOLDEN / name).rglob("*") if f.is_file()))


main()
