"""Exit codes of the command line."""

from collections.abc import Mapping

BUG, USAGE, ENVIRONMENT = 1, 2, 3
DEFECT = 70  # EX_SOFTWARE of sysexits.h: a crash must not look like a bug found
INTERRUPT = 130  # 128 + SIGINT, as shells say it
MEANINGS: Mapping[int, str] = {
    0: "no bug",
    BUG: "a bug or evidence of one; something missing; nothing could be judged",
    USAGE: "wrong usage",
    ENVIRONMENT: "this machine lacks a requirement, such as a GPU or an extra",
    DEFECT: "a defect of the workbench",
    INTERRUPT: "Ctrl-C",
}
