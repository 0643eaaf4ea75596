"""A first screen of help is short; the whole one groups options, each in one section."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from campaigns import cli as campaigns
from workbench.case.spellings import EXAMPLES, REMOVED, RETIRED, WORDS, flag
from workbench.cli.commands import CAMPAIGNS, OTHERS, SECTIONS
from workbench.cli.main import commands
from workbench.refusal import Refusal


def of(*words):
    """The command that words name."""
    command = commands
    for word in words:
        command = command.commands[word]
    return command


def help_of(*words, asked="-h", width=120):
    result = CliRunner().invoke(commands, [*words, asked], terminal_width=width)
    assert result.exit_code == 0
    return result.stdout


def sections(text):
    """Heading -> the options below it, as the help shows them."""
    found = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            listed = found.setdefault(line[:-1], [])
        elif option := re.match(r"  (-{1,2}[\w-]+)", line):
            listed.append(option[1])
    return found


GROUPED = [("diff",), ("show",), ("check",), ("bench", "kernel")]


@pytest.mark.parametrize("words", GROUPED, ids=" ".join)
def test_every_option_of_a_command_that_takes_a_case_is_in_one_section(words):
    found = sections(help_of(*words, asked="--help-all"))
    listed = [option for options in found.values() for option in options]
    known = [option for option in of(*words).params if isinstance(option, click.Option)]
    assert len(listed) == len(set(listed)) == len(known) + 2, "two more: -h, --help-all"
    if words != ("bench", "kernel"):
        assert set(found) <= {*SECTIONS}, f"no section has {found.get(OTHERS)}"
    order = [heading for heading in SECTIONS if heading in found]
    assert [*found][: len(order)] == order and len(order) >= 4


@pytest.mark.parametrize("option", EXAMPLES)
def test_the_examples_of_words_are_read(option):
    words = [flag(option), EXAMPLES[option]]
    assert of("diff").make_context("diff", ["flash", *words]).params["target"] == "flash"


def test_options_that_belong_together_stand_together():
    found = sections(help_of("diff", asked="--help-all"))
    assert {"--seqlen", "--causal", "--dtype", "--inputs"} <= {*found["Case (lists run every combination)"]}
    assert {"--arrays", "--isolate", "--runs"} <= {*found["Your kernel"]}
    assert {"--effort", "--json", "--html", "-v", "--out", "--fail-on", "-h", "--help-all"} == {*found["Output"]}


def test_diff_has_at_most_51_options():
    """More than a reader looks through; what belongs together is said by the words of one option."""
    listed = sections(help_of("diff", asked="--help-all"))
    assert 40 <= sum(map(len, listed.values())) <= 51


@pytest.mark.parametrize(("option", "words"), WORDS.items(), ids=lambda part: part if isinstance(part, str) else "")
def test_the_words_of_an_option_stand_below_it(option, words):
    _, _, below = help_of("diff", asked="--help-all").partition(f"\n  --{option.replace('_', '-')} ")
    below = below.partition("\n  -")[0]
    assert re.findall(r"^    ,?(\w+)[= ]", below, re.MULTILINE) == [*words]


@pytest.mark.parametrize(("option", "said"), RETIRED.items())
def test_an_option_that_there_was_says_what_it_is_now(option, said):
    for words in ([option, "8"], [f"{option}=8"]):
        result = CliRunner().invoke(commands, ["diff", "flash", *words])
        assert isinstance(result.exception, Refusal)
        assert str(result.exception) == f"{option} was replaced: {said}"
    (param,) = [one for one in of("diff").params if one.opts == [said.split()[0]]]
    context = click.Context(of("diff"))
    values = said.split(";")[0].split()[1].replace("NAME,", "attention_backward,")
    assert param.process_value(context, values), "the words that it names are read"


@pytest.mark.parametrize(("said", "instead"), REMOVED.items())
def test_what_was_removed_says_what_to_do_instead(said, instead):
    result = CliRunner().invoke(commands, [*said.split(), "mine.py:attention"])
    assert isinstance(result.exception, Refusal)
    assert str(result.exception) == f"workbench {said} was removed: {instead}"


def test_the_changelog_lists_what_was_removed():
    lines = Path(__file__).parents[2].joinpath("CHANGELOG.md").read_text().splitlines()
    assert not [said for said in REMOVED if not any(all(word in line for word in said.split()) for line in lines)]


def test_an_option_that_no_command_had_is_unknown_still():
    result = CliRunner().invoke(commands, ["faults", "--kv-heads", "2"])
    assert result.exit_code == 2 and "No such option '--kv-heads'" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--heads", "8,kw=2"), "--heads 8,kw=2: has no word kw; its words are kv=, pack_gqa, as in --heads 8,kv=2"),
        (
            ("--heads", "8,kv=two"),
            "--heads 8,kv=two: kv takes INTEGER, got 'two'; its words are kv=, pack_gqa, as in --heads 8,kv=2",
        ),
        (("--heads", "8,kv"), "--heads 8,kv: kv needs a value; its words are kv=, pack_gqa, as in --heads 8,kv=2"),
        (
            ("--codes", "e4m3,of=kv,off=kv"),
            "--codes e4m3,of=kv,off=kv: has no word off; its words are of=, scale_of=, scores=, decode=, quantiser=, as "
            "in --codes e4m3,of=kv,scale_of=token",
        ),
        (
            ("--causal", "aline=top-left"),
            "--causal aline=top-left: has no word aline; its words are align=, as in --causal align=top-left",
        ),
        (
            ("--alibi-slopes", "form=column"),
            "--alibi-slopes form=column needs the option's own value, as in --alibi-slopes geometric,form=column",
        ),
        (
            ("--page-size", "layout=HND"),
            "--page-size layout=HND needs the option's own value, as in --page-size 16,layout=HND",
        ),
        (
            ("--operation", "rmsnorm,rows=8", "--axes", "rows=9"),
            "--operation rmsnorm,rows=8: rows is 8 there, but 9 before or in --axes; give it once",
        ),
        (
            ("--operation", "rmsnorm,rows=8,rows=9"),
            "--operation rmsnorm,rows=8,rows=9: rows is 9 there, but 8 before or in --axes; give it once",
        ),
        (
            ("--operation", "rmsnorm,epsilon=1"),
            "--operation rmsnorm has no word 'epsilon'; did you mean eps?",
        ),
        (
            ("--operation", "rmsnorm,gradients"),
            "--operation rmsnorm has no word 'gradients'; its words are rows=, dim=, eps=, as in "
            "--operation rmsnorm,rows=8",
        ),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_words_that_are_none_are_refused(words, said):
    result = CliRunner().invoke(commands, ["diff", "flash", *words])
    assert isinstance(result.exception, Refusal) and str(result.exception) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("diff flash --causal align=bottom", "--causal align= must be one of bottom-right, top-left; got 'bottom'"),
        (
            "diff flash --alibi-slopes geometric,form=key",
            "--alibi-slopes form= must be one of distance, column; got 'key'",
        ),
        ("diff flash --page-size 16,layout=hnf", "--page-size layout= must be one of NHD, HND; got 'hnf'"),
        (
            "diff flash --dtype float16,probs=half",
            "--dtype probs= must be one of float32, float16, bfloat16; got 'half'",
        ),
        ("diff flash --distribution normal,std=-1", "--distribution std= must be above 0; got -1"),
        ("sweep flash --random 2 --distribution normal,std=-1", "--distribution std= must be above 0; got -1"),
        (
            "diff flash --head-dim 64,shared_kv",
            "shared_kv (absorbed MLA) needs head_dim_v and scale, such as --head-dim 576,v=512,shared_kv --scale 0.0722: "
            "v is the first 512 dims of k, and the scale is 1 / sqrt(head dimension before absorption), here "
            "192**-0.5",
        ),
        ("diff mine.py:f --causal top-left", "--causal takes no, yes and align=; got 'top-left'"),
        ("diff --causal maybe flash", "--causal takes no, yes and align=; got 'maybe'"),
        ("show flash --causal maybe qk[q=5]", "--causal takes no, yes and align=; got 'maybe'"),
        ("diff --isolate 5 mine.py:f", "--isolate takes no, yes and timeout=, memory_gb=; got '5'"),
        (  # a target behind it is one
            "diff --causal flash split_k",
            "give one TARGET, or several .safetensors files of one run; got flash split_k",
        ),
        (
            "diff fp8 --codes e4m3,scale_of=token,block",
            "--codes must be one of simulated, e4m3, e5m2, mxfp8-e4m3, mxfp8-e5m2, nvfp4, int8, int4; got 'block'; to pass "
            "several values, separate them with slashes: scale_of=.../block",
        ),
        (
            "diff flash --against block-k=32",
            "--against block-k=32: settings of a second run must be among splits, block_q, block_k, pack_gqa, "
            "backend; got block-k; did you mean block_k?; to compare with an earlier run pass since=FILE",
        ),
        (
            "diff flash --against since",
            "--against since: since needs the trace of an earlier run: since=FILE",
        ),
        (
            "diff mine.py:f --operation rmsnorm --seqlen 16",
            "--operation rmsnorm takes no --seqlen; pass --axes rows=,dim=",
        ),
        (
            "diff mine.py:f --operation attention_backward --causal",
            "--operation attention_backward takes no --causal; pass --operation attention_backward,causal",
        ),
        (
            "diff mine.py:f --operation attention_backward,cusal",
            "--operation attention_backward has no word 'cusal'; did you mean causal?",
        ),
        (
            "diff mine.py:f --operation rmsnorm,eps",
            "--operation rmsnorm has no word 'eps'; write eps=",
        ),
        ("diff flash --window 4", "--window must be two whole numbers, left and right, of at least -1; got 4"),
        ("diff flash --seqlen 0", "--seqlen must be a whole number of at least 1; got 0"),
        ("diff flash --contract triton", "--contract is for your own kernels; flash is built in"),
        ("diff flash --seqlen 16 --seqlen 32", "--seqlen is given 2 times, but takes one value or list"),
        ("accept mine.py", "give your kernel as path.py:function; got 'mine.py'; functions in it: f"),
    ],
)
def test_what_is_refused_is_said_as_it_was_typed(line, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def f(q, k, v, *, scale, causal):\n    return v\n")
    result = CliRunner().invoke(commands, line.split())
    found = (
        str(result.exception) if isinstance(result.exception, Refusal) else result.stderr.split("Error: ")[1].strip()
    )
    assert result.exit_code and found == said


def test_a_fault_may_be_given_twice_and_a_word_in_any_case():
    words = ["--page-size", "16,layout=hnd", "--seqlen", "16", "--backend", "emulator"]
    faults = ["--fault", "flash-scale-twice", "--fault", "flash-no-correction"]
    twice = CliRunner().invoke(commands, ["diff", "flash", *words, *faults])
    assert not isinstance(twice.exception, Refusal) and "layout=HND" in twice.stdout


def test_the_first_help_says_where_every_option_is():
    assert "`workbench COMMAND --help-all` every option" in " ".join(
        CliRunner().invoke(commands, ["--help"]).stdout.split()
    )


OF_CASES = [name for name, command in commands.commands.items() if getattr(command, "takes_cases", False)]


@pytest.mark.parametrize("name", OF_CASES)
def test_a_first_screen_of_help_fits_a_terminal_and_says_how_many_options_there_are(name):
    text = help_of(name, width=80)
    ((heading, listed),) = sections(text).items()
    of_all = sections(help_of(name, asked="--help-all")).values()
    assert len(text.splitlines()) <= 24 and {"--seqlen", "--causal"} <= {*listed}
    assert heading == f"Common options (--help-all shows all {sum(map(len, of_all))})"


def test_commands_that_take_a_case_are_those():
    assert {"diff", "show", "explain", "sweep", "measure"} <= {*OF_CASES} and "doctor" not in OF_CASES


@pytest.mark.parametrize("words", [("faults",), ("doctor",)], ids=" ".join)
def test_a_command_with_few_options_has_one_list(words):
    assert [*sections(help_of(*words))] == ["Options"]


def test_arguments_are_no_options():
    assert not re.search(r"^  TARGET *$", help_of("diff"), re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("diff", "flash", "--by-head", "true"),
            "--by-head is a flag and takes no value; got 'true': leave 'true' out",
        ),
        (
            ("check", "--json", "False", "flash"),
            "--json is a flag and takes no value; got 'False': leave --json out to turn it off",
        ),
    ],
)
def test_a_flag_that_is_given_a_value_is_named(words, said):
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 2 and result.stderr.splitlines()[-1] == f"Error: {said}"


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_command_that_is_a_campaign_now_says_so(name):
    assert name in campaigns.commands.commands
    result = CliRunner().invoke(commands, ["bench", name, "--jobs", "2"])
    assert isinstance(result.exception, Refusal) and str(result.exception) == (
        f"{name} is a campaign, not a command of workbench: in a checkout of the repository run python -m "
        f"campaigns {name} --jobs 2"
    )


def test_score_is_one_and_faults_are_listed_still():
    result = CliRunner().invoke(commands, ["score", "--help"])
    assert isinstance(result.exception, Refusal) and str(result.exception).endswith("python -m campaigns score --help")
    assert CliRunner().invoke(commands, ["faults"]).exit_code == 0
