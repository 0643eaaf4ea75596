"""How a command line says the fields of a case and the options of a run: one option for what belongs together.

`--codes e4m3,int8,of=kv` says codes and codes_of: parts without a name are values of the option's own field, and the
others name a word, whose values are separated by `/`. It imports no NumPy, so that `workbench --help` is quick.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workbench.case.fields import FIELDS, Truth, typed

#: option: its words, each as WORD=FIELD, or by the name of the field of a case, or the option of a run, that it says
_WORDS = """
heads: kv=kv_heads pack_gqa
head_dim: v=head_dim_v shared_kv
dtype: probs=probs_dtype
causal: align=causal_alignment
alibi_slopes: form=alibi_form
page_size: layout=kv_layout
codes: of=codes_of scale_of scores decode quantiser=quantiser_scale
distribution: std=input_std
arrays: device layout
probes: limit_gb
isolate: timeout memory_gb
against: since=against_trace
"""
#: options whose words say how what their value gives is laid out, or counts: without it they would do nothing
NEED_VALUE = ("alibi_slopes", "page_size")
#: option with words: how it may be said
_EXAMPLES = """
heads: 8,kv=2
head_dim: 192,v=128
dtype: bfloat16,probs=float32
causal: align=top-left
alibi_slopes: geometric,form=column
page_size: 16,layout=HND
codes: e4m3,of=kv,scale_of=token
distribution: normal,std=0.5
arrays: torch,device=cuda,layout=bshd
probes: acc,out,limit_gb=8
isolate: timeout=30,memory_gb=4
"""


def _table(text: str) -> Mapping[str, str]:
    """Lines of `name: text`."""
    return dict(line.split(": ") for line in text.strip().splitlines())


#: option -> word -> what it says
WORDS: Mapping[str, Mapping[str, str]] = {
    option: {word: name or word for word, _, name in (one.partition("=") for one in words.split())}
    for option, words in _table(_WORDS).items()
}
EXAMPLES = _table(_EXAMPLES)
#: a length -> the lengths of sequences that its option says too
LENGTHS: Mapping[str, str] = {"seqlen_q": "seqlens_q", "seqlen_k": "seqlens_k"}
#: options that stand alone, or with words
TRUTHS = ("causal", "isolate")
#: name -> the option that says it, and the word
OPTION: Mapping[str, tuple[str, str]] = {
    name: (option, word) for option, words in WORDS.items() for word, name in words.items()
}
#: options that command lines had -> what says the same
RETIRED: Mapping[str, str] = {
    "--kv-heads": "--heads 8,kv=2",
    "--pack-gqa": "--heads 8,kv=2,pack_gqa",
    "--head-dim-v": "--head-dim 192,v=128",
    "--shared-kv": "--head-dim 576,v=512,shared_kv",
    "--seqlens-q": "--seqlen-q 5+64+1",
    "--seqlens-k": "--seqlen-k 1+63+1000",
    "--probs-dtype": "--dtype bfloat16,probs=float32",
    "--causal-alignment": "--causal align=top-left",
    "--full": "--causal no; both masks: --causal no,yes",
    "--alibi-form": "--alibi-slopes geometric,form=column",
    "--kv-layout": "--page-size 16,layout=HND",
    "--codes-of": "--codes e4m3,of=kv",
    "--scale-of": "--codes e4m3,scale_of=token",
    "--scores": "--codes e4m3,scores=scalar",
    "--decode": "--codes e4m3,decode=direct",
    "--quantiser-scale": "--codes e4m3,quantiser=static",
    "--input-std": "--distribution normal,std=0.5",
    "--device": "--arrays torch,device=cuda",
    "--layout": "--arrays torch,layout=bshd",
    "--limit-gb": "--probes all,limit_gb=8",
    "--timeout": "--isolate timeout=30",
    "--memory-gb": "--isolate memory_gb=4",
    "--against-trace": "--against since=FILE.safetensors",
    "--numbers": "--operation rmsnorm,eps=1e-5",
    "--optional": "--operation attention_backward,sinks",
}
#: commands, and options of a command, that nothing on the command line replaces -> what to do instead
REMOVED: Mapping[str, str] = {
    "watch": "run diff on each save of the file, as examples/judge_on_save.py of the repository does",
    "compare-runs --model": "run the model with one attention layer taken from the other side, and compare the logits",
}


class Ragged(NamedTuple):
    """Lengths of the sequences of a ragged batch, and rows to which they are padded; None: those of the longest."""

    lengths: tuple[int, ...]
    rows: int | None = None

    def __str__(self) -> str:
        """As a command line takes it: `5+64+1`, of one sequence `5+`, of 128 rows `5+64+1:128`."""
        several = "+".join(map(str, self.lengths)) + "+" * (len(self.lengths) == 1)
        return several if self.rows is None else f"{several}:{self.rows}"


def length_of(said: str) -> int | Ragged:
    """A length, or those of a ragged batch; ValueError where it is neither."""
    if "+" not in said:
        return int(said)
    several, colon, rows = said.partition(":")
    lengths = several.removesuffix("+") if several.count("+") == 1 else several
    return Ragged(tuple(map(int, lengths.split("+"))), int(rows) if colon else None)


def flag(name: str) -> str:
    """The option of a command line that says `name`, and its word."""
    option, *word = OPTION.get(name, (name,))
    return " ".join([f"--{option.replace('_', '-')}", *word])


def said(values: Mapping[str, Any]) -> list[str]:
    """The words of a command line, not quoted, that give fields of a case or options of a run, by name; lengths of
    sequences among them.
    """
    found: dict[str, list[str]] = {}
    for name, value in _with_lengths(values).items():
        option, *word = OPTION.get(name, (name,))
        parts = found.setdefault(option, [])
        truth = name in TRUTHS or (name in FIELDS and isinstance(FIELDS[name].rule, Truth))
        text = ("yes" if value else "no") if truth else str(value) if isinstance(value, Ragged) else typed(value)
        if word:
            parts.append(word[0] if truth and value else f"{word[0]}={text}")
        else:
            parts.insert(0, text)
    if (causal := found.get("causal")) and "causal" not in values:
        causal.insert(0, "no")  # its words alone say that it is
    return [part for option, parts in found.items() for part in _option(option, parts)]


def _option(option: str, parts: Sequence[str]) -> list[str]:
    """An option and its value, which says more than that it is on."""
    more = [part for part in parts if part != "yes"] if option in TRUTHS else parts
    return [flag(option), *([",".join(more)] if more else [])]


def _with_lengths(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of lengths of sequences in the place of their largest."""
    several = {name: values[of] for name, of in LENGTHS.items() if of in values}
    if not several:
        return dict(values)
    rows = {name: values.get(name, values.get("seqlen")) for name in LENGTHS}
    found = {name: Ragged(several[name], rows[name]) if name in several else rows[name] for name in LENGTHS}
    found = {name: x for name, x in found.items() if x is not None}
    return found | {name: x for name, x in values.items() if not name.startswith("seqlen")}
