"""Rows, as data: a module for each project with its PROJECT, its CASES, and its bugs, WRONG; a large one has several.

How to add a bug:
1. `git log` shows a commit that fixes numbers; `before` is its parent. A Case says how the function is called: `kernel`
   (module:function, parameter -> input, constants; an adapter where it fills its arguments), `references` (the
   project's naive one, file.py:function, at its newest commit, or plain/FILE:function, torch written from the
   definition), `inputs(seed, dtype, T)` that show the bug, `contract` (arithmetic, read off the kernel's source).
2. `shows` has the results, or gradients `dx` of inputs x, that are wrong before the fix, and `wrong_in` whether forward
   or gradients. Results are called as the variables that the reference returns.
3. The truth is the line of the reference that the kernel does otherwise, and how: before the row is run.
"""

import importlib
import pkgutil
from collections.abc import Mapping

from campaigns.real.case import Case
from campaigns.real.project import Project
from campaigns.real.wrong import Wrong

_MODULES = [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
PROJECTS: Mapping[str, Project] = {one.PROJECT.name: one.PROJECT for one in _MODULES if hasattr(one, "PROJECT")}
#: of the newest commits, by project
CASES: Mapping[str, tuple[Case, ...]] = {one.PROJECT.name: one.CASES for one in _MODULES if hasattr(one, "PROJECT")}
WRONG: Mapping[str, Wrong] = {bug.name: bug for one in _MODULES for bug in getattr(one, "WRONG", ())}
#: name of a bug -> its number, from 1 on
NUMBERS: Mapping[str, int] = {name: n for n, name in enumerate(WRONG, 1)}
