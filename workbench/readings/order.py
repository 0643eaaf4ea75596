"""Readings, in the order of what each of them needs to know, each corrected by those before it."""

from functools import partial

import numpy as np

from workbench.readings import (
    known_wrong_kernels,
    of_bias,
    of_blocks,
    of_codes,
    of_dims,
    of_memory,
    of_moves,
    of_operands,
    of_pool,
    of_regions,
    of_rescaled,
    of_scales,
    of_scores,
    of_shares,
    of_softmax,
    of_tiles,
    of_values,
    scale_rules,
)
from workbench.readings.believed import BELIEVED, Believed
from workbench.readings.finding import Finding
from workbench.readings.model import Model, right
from workbench.readings.proof import LEFT, rms
from workbench.readings.steps import steps

#: the same of what an experiment shows by itself, which another fault may hide in the natural weights
SURE = 1.5
#: share of the rows of out that choose the keys of others in six runs, above which that is no chance; a few may have
#: lost theirs
MANY = 0.1
#: share of what is wrong in weights that is not one factor a row, below which their sums are looked at first
OF_ROWS = 0.3
#: share of the error of weights that other operands may leave
OTHER = 0.2
#: readings of what stands where, which kernels of some rows leave as it is
OF_INPUTS = ("heads", "elements", "operands", "response", "table", "scale")
#: share of the error of the user's own run below which nothing is left: what casts of weights to 16 bits leave
EXACT = 1e-4
#: ways of one reading that are tried on the whole run
MOST_WAYS = 64


class Reader(Believed):
    """The readings of one target."""

    def read_all(self) -> None:
        """All readings, in the order of what each of them needs to know."""
        if "v" in self.target.books:
            self.coded_v()
            if self.exact:
                return
        self.scaled()
        self.of_values(of_values.added, believed=True)
        if self.model.lost is not None and np.isfinite(self.target.natural.out[self.model.lost]).all():
            # 0 / 0 of a function that quantises V by its own maximum
            self.model, self.found = self.model.but(lost=None), [one for one in self.found if one.reading != "lost"]
            self.rescaled(*of_rescaled.readable(self.target))
            if self.explained:
                return
        elsewhere = None
        if self.unclosed > 1 or (self.off and not all(x.all() for x in self.multiplied)):
            elsewhere = self.placed()
        begun = self.model, list(self.found), self.read
        self.read_rest()
        if elsewhere is not None and not self.explained:
            without = self.left(self.model), (self.model, self.found, self.read)
            self.model, self.found, self.read = elsewhere[0], begun[1] + elsewhere[1], elsewhere[2]
            self.read_rest()
            if self.left(self.model) > without[0]:
                self.model, self.found, self.read = without[1]

    def read_rest(self) -> None:
        """What comes after the places of results."""
        for reading in (of_values.columns, of_values.heads, of_values.elements):
            if self.unclosed > 1:
                self.of_values(reading)
        if self.unclosed > 1 and not self.target.spent:
            self.of_all_values()
        self.with_operands()
        self.started()
        self.factored()
        if {"q", "k"} & {*self.target.books}:
            self.coded()
        self.responded()
        if self.off and self.misfit(self.model) < OF_ROWS * self.misfit(self.model, scaled=False):
            self.of_weights(of_softmax.denominator, self.read, self.allowed(self.model), scaled=False)
        if self.explained:
            return
        rows, keys = self.multiplied
        tried = None
        if max(rows.mean(), keys.mean()) > 0.5:
            tried = self.model
            self.known_wrong()
            self.in_blocks()
        if not (rows.all() and keys.all()):
            self.maps()
            if self.model is not tried and not self.explained:
                self.known_wrong()
                self.in_blocks()
        if self.explained:
            return
        before = self.model
        for of_scores_ in (of_tiles.in_tiles, of_dims.of_dims, of_rescaled.of_scores):
            self.of_weights(of_scores_, self.read, self.allowed(self.model))
        if self.model is not before and not self.explained:
            self.known_wrong()
        self.merged()
        if self.explained:
            return
        self.stepped()
        for last, scaled in (
            (of_softmax.flushed, True),
            (of_softmax.denominator, False),
            (of_softmax.mixed, False),
        ):
            self.of_weights(last, self.read, self.allowed(self.model), scaled=scaled)
        if not self.explained:
            self.of_moved_rows()
        if not self.explained and any(one.reading == "added" for one in self.found):
            self.pooled()
        if not self.explained:
            self.rescaled(self.read, self.allowed(self.model))
        if not self.explained:
            self.in_regions()

    def of_moved_rows(self) -> None:
        """Rows of V that stand elsewhere, in place of keys that are lost and doubled: K is wrong, too."""
        begun = next((one for one in self.found if one.reading == "start"), None)
        if begun is None or "v" in self.model.sources or self.model.kernel is not None:
            return
        plain = self.model.but(start=right(self.target).start, fixed=None)
        model, found = of_moves.of_all_rows(plain, begun)
        if found and self.left(model) < min(LEFT * self.left(right(self.target)), self.left(self.model)):
            self.model = model
            self.found = [one for one in self.found if one.reading not in ("start", "fixed")] + found

    def pooled(self) -> None:
        """The buffer of K and V that makes the natural run."""
        plain, answer = right(self.target), self.target.natural
        if answer.trace.inputs["k"].shape != answer.trace.inputs["v"].shape:
            return
        ways = ((one, plain.but(kernel=one)) for one in of_pool.pools(self.target.case.seqlen_k))
        told = next((way for way in ways if self.left(way[1]) < LEFT * self.left(plain)), None)
        if told is not None:
            one, self.model = told
            wrong = answer.wrong
            self.found = [Finding("pool", "scores", one.words, int(wrong.sum()), wrong.size, {"kernel": one})]

    def merged(self) -> None:
        """With whose lse splits are merged; kept where that makes the natural run. What it does shows at q = 0, too."""
        if self.model.kernel is not None or not self.off:
            return
        for gone in ((), ("start", "fixed")):
            base = self.model.but(start=right(self.target).start, fixed=None) if gone else self.model
            model, found = of_shares.of_shares(self.target, base, self.read, self.allowed(base))
            if found and self.left(model) < LEFT * self.left(right(self.target)):
                self.model, self.found = model, [one for one in self.found if one.reading not in gone] + found
                return

    def rescaled(self, read: np.ndarray, allowed: np.ndarray) -> None:
        """With whose scales blocks of K and V are multiplied, of which the function makes codes itself, in place of
        what else was found; kept where that makes the natural run.
        """
        if not of_rescaled.may_be_read(self.target):
            return
        model, found = of_rescaled.scaled(self.target, read, allowed)
        if found and self.left(model) < LEFT * self.left(right(self.target)):
            self.model, self.found = model, found

    def in_regions(self) -> None:
        """Kernels of some rows and dims, in place of what was said of weights; kept where they make the natural run."""
        kept = [one for one in self.found if one.reading in OF_INPUTS]
        bare = right(self.target)
        ways = [(bare, list[Finding]())]
        if kept:
            ways.append((self.model.but(start=bare.start, fixed=None), kept))
        for base, before in ways:
            model, found = of_regions.in_regions(self.target, base)
            if found and self.left(model) < LEFT * self.left(bare):
                self.model, self.found = model, before + found
                return

    def coded_v(self) -> None:
        """The table and the scale of V. The codes that it has wrong are not used in K and Q either, until their own
        tables are read: a kernel may have one table for all.
        """
        self.of_values(of_codes.table_of_v, believed=True)
        self.of_values(of_scales.map_of_v)
        if "v" not in self.model.scales:
            self.of_values(scale_rules.rule_of_v, believed=True)
        if "v" not in self.model.tables:
            return
        self.weights = self.target.weights()  # of other codes
        self.read = of_values.solved(self.model, self.weights)
        for name in {"q", "k"} & {*self.target.books}:
            book = self.target.books[name]
            self.target.use(name, book.values, self.target.books["v"].usable)

    def coded(self) -> None:
        """The map of K, of two codes, before tables, which are read through maps; each is believed for what it shows by
        itself, as what it leaves may be another's.
        """
        if "k" in self.target.books and not self.multiplied[1].all():
            base = self.model
            ways = [of_operands.elements(self.target, base, "k")]
            # rows of Q that are others look like dims of K that are: of the two what leaves less
            if ways[0][1] and "q" in self.target.books and self.misfit(ways[0][0]) > 0.5 * self.misfit(base):
                ways.append(of_operands.elements(self.target, base, "q"))
            told = min([way for way in ways if way[1]], key=lambda way: self.misfit(way[0]), default=ways[0])
            self.of_weights(lambda *_: told, believed=SURE)
        for name in sorted({"k", "q"} & {*self.target.books}):
            if not self.exact and not self.target.spent:
                self.model, found = of_codes.table_of_scores(self.target, self.model, name)
                self.found += found
        for name in [x for x in "kq" if x in self.target.books]:
            if not self.exact and not self.target.spent:
                self.of_weights(partial(of_scales.map_of_scores, name=name), believed=SURE)
        self.scaled()

    def scaled(self) -> None:
        """Whose scales K and Q are multiplied by, or what becomes of them: kept where a small part of the error of
        weights is left.
        """
        if not {"q", "k"} & {*self.target.books} or self.exact or not self.off:
            return
        ways = list(scale_rules.rules_of_scores(self.target, self.model))
        model, found = min(ways, key=lambda one: self.misfit(one[0]), default=(self.model, []))
        if self.misfit(model) < OTHER * self.misfit(self.model):
            self.model, self.found = model, self.found + found

    @property
    def exact(self) -> bool:
        """Whether what was found leaves nothing of the error of the user's own run: budgets of kernels that cast P to 8
        bits hide a table that is wrong.
        """
        left = self.left(self.model)
        return bool(self.found) and left <= EXACT * rms(self.target.natural, self.target.natural.expected)

    def maps(self) -> None:
        """Which elements of Q and K are multiplied: first those of the operand whose map leaves less."""
        for reading in (of_operands.elements, of_operands.elements_of_all):
            if not self.off or self.target.spent:
                return
            base = self.model
            ways = {name: reading(self.target, base, name) for name in ("k", "q")}
            for name in sorted(ways, key=lambda name: self.misfit(ways[name][0])):
                if self.model is base:
                    self.of_weights(lambda *_, way=ways[name]: way)
                elif not self.target.spent:
                    self.of_weights(partial(reading, name=name))

    def of_all_values(self) -> None:
        """A map of V whose heads read others' memory; one of a head alone is then no more than a part of it."""
        sources = {name: x for name, x in self.model.sources.items() if name != "v"}
        plain = self.model.but(sources=sources)
        model, found = of_memory.values_of_all(self.target, plain)
        if not found:
            return
        read = of_values.solved(model, self.weights)
        closed = float(of_values.unclosed(self.target, model, read, self.allowed(model)).max()) <= 1
        # where rows of V are read twice, weights of theirs cannot be told apart
        if closed or self.left(model) < LEFT * self.left(plain):
            self.model, self.read = model, read
            self.found = [one for one in self.found if one.reading != "elements" or "v" not in one.data] + found

    def in_blocks(self) -> None:
        """What is alike in all blocks, where that leaves little of the error."""
        for tried in (of_blocks.moved, of_blocks.factors, of_blocks.polynomials):
            if self.unpredicted:
                ways = list(tried(self.target, self.model, self.read))[:MOST_WAYS]
                model, found = min(ways, key=lambda one: self.left(one[0]), default=(self.model, []))
                if found and self.left(model) < LEFT * self.left(self.model):
                    self.model = model
                    self.found += found

    def responded(self) -> None:
        """A curve that all rows show is so, whatever else is wrong; but where it brings the natural weights no nearer,
        a cast of scores may be what looks like one.
        """
        before = self.model, list(self.found)
        self.of_weights(of_scores.response, believed=SURE)
        if self.model is before[0] or self.misfit(self.model) < BELIEVED * self.misfit(before[0]):
            return
        after = self.model, self.found
        self.model, self.found = before
        self.known_wrong()
        if self.model is before[0] or not self.explained:
            # of the two what leaves less
            without, (self.model, self.found) = (self.model, self.found), after
            self.known_wrong()
            if without[0] is not before[0] and self.left(without[0]) < 2 * self.left(self.model):
                self.model, self.found = without

    def known_wrong(self, *, casts: bool = True) -> None:
        """A loop, a merge, a buffer or a cast that makes the natural run. What a wrong merge or a buffer does shows at
        q = 0 too, as keys that weigh too much there, or are seen: that is then dropped.
        """
        if self.model.kernel is not None or not self.unpredicted:
            return
        begun = next((one for one in self.found if one.reading == "start"), None)
        rest = [one for one in self.found if one.reading not in ("start", "fixed")]
        ways = [(self.model, self.found, False)]
        if begun is not None and not begun.data["masks"]:
            mask, text = begun.data["mask"], begun.data["said of mask"]
            data = {"table": mask, "masks": True, "mask": mask, "said of mask": text}
            more = [Finding("start", "scores", text, begun.wrong, begun.of, data)] if text else []
            ways.insert(0, (self.model.but(start=mask, fixed=None), rest + more, False))
        if begun is not None:
            ways.append((self.model.but(start=right(self.target).start, fixed=None), rest, True))
        for base, before, stale in ways:
            model, found = known_wrong_kernels.kernels(self.target, base, stale=stale, casts=casts)
            if found:
                gone = ("steps", "denominator", "flushed", "moved")
                self.model, self.found = model, [one for one in before if one.reading not in gone] + found
                self.without_needless()
                return

    def without_needless(self) -> None:
        """Maps are dropped without which the kernel that was found makes the natural run as well."""
        for name in [*self.model.sources]:
            bare = self.model.but(sources={key: x for key, x in self.model.sources.items() if key != name})
            if self.left(bare) <= 1.01 * self.left(self.model):
                self.model = bare
                self.found = [one for one in self.found if one.reading != "elements" or name not in one.data]

    def with_operands(self) -> None:
        """Whose products scores are: kept where that leaves a small part of the error."""
        if not self.off:
            return
        begun, multiplied = self.misfit(self.model), np.mean(self.multiplied[0]) > 0.5
        ways = of_operands.operands(self.target, self.model)
        # sums over queries leave the differences of scores as they are, but for those of the sums
        some = [one for one in ways if one[0].by_query or not multiplied]
        model, found = min(some, key=lambda one: self.misfit(one[0]))
        if self.misfit(model) < OTHER * begun:
            self.model = model
            self.found += found

    def factored(self) -> None:
        """A factor of scores that responses did not tell, as where rows of V are lost."""
        if self.off and "v" in self.model.sources:
            model, found = of_operands.factor(self.target, self.model, self.misfit)
            self.model = model
            self.found += found

    def started(self) -> None:
        """What keys weigh at q = 0, hidden ones as a number of their own or with their scores; keys that weigh nothing,
        or twice, may be rows of V that stand elsewhere.
        """
        if not self.off:
            return
        model, found = of_scores.start(self.target, self.model)
        if not found:
            return
        begun = self.model
        ways = [(model, found)]
        formula, of_bias_ = of_bias.linear(self.target, begun, model, found[0])
        if of_bias_:
            ways.insert(0, (formula, of_bias_))
        other, of_other = of_moves.moved(begun, found[0])
        if of_other:
            ways.insert(0, (other, of_other))
        alone, of_fixed = of_scores.fixed(self.target, model, found[0])
        if of_fixed:
            ways.append((alone, of_fixed))
        told = min(ways, key=lambda one: self.misfit(one[0]))
        if of_bias_ and self.misfit(formula) < 2 * self.misfit(told[0]):
            ways = [ways[0]]  # a formula in place of a table
            told = ways[0]
        if self.misfit(told[0]) > LEFT * self.misfit(begun) and all(np.mean(x) > 0.5 for x in self.multiplied):
            before = self.found
            self.model, self.found = told[0], before + told[1]
            self.known_wrong(casts=False)
            if self.model.kernel is not None:
                return
            self.model, self.found = begun, before
        if "v" not in begun.sources and self.misfit(told[0]) > LEFT * self.misfit(begun):
            moved, of_map = of_values.elements(self.target, begun)
            if of_map:
                ways.append((moved, of_map))
        model, found = min(ways, key=lambda one: self.misfit(one[0]))
        # keys that are seen or not are so whatever scores are; another weight may be what a merge makes of it
        if found[0].data.get("masks") or self.misfit(model) < BELIEVED * self.misfit(begun):
            self.model, self.read = model, of_values.solved(model, self.weights)
            self.found += found

    def stepped(self) -> None:
        """Steps along the keys. A wrong merge shows at q = 0 too, as keys that weigh too much there; where steps alone
        leave a fifth as much, that finding is dropped. So is what rows were found to be divided by.
        """
        begun = next((one for one in self.found if one.reading == "start" and not one.data.get("masks")), None)
        plain = self.model if begun is None else self.model.but(start=right(self.target).start, fixed=None, step=None)
        if self.model.denominator is not None:
            for base, gone in (
                (self.model.but(denominator=None), ("denominator",)),
                (plain.but(denominator=None), ("denominator", "start", "fixed")),
            ):
                if self.off and self.stepped_from(base, gone, scaled=False):
                    return
        self.of_weights(steps, self.read, self.allowed(self.model))
        if begun is not None and self.off:
            self.stepped_from(plain, ("start", "fixed", "steps"), scaled=True)

    def stepped_from(self, base: Model, gone: tuple[str, ...], *, scaled: bool) -> bool:
        """Whether steps beside a model without findings of the readings `gone` leave a fifth of what is left; they are
        then kept in their place.
        """
        model, found = steps(self.target, base, self.read, self.allowed(base))
        if not found or self.misfit(model, scaled=scaled) >= self.misfit(self.model, scaled=scaled) / 5:
            return False
        kept = [one for one in self.found if one.reading not in gone or (one.reading == "start" and one.data["masks"])]
        self.model, self.found = model, kept + found
        return True

    def placed(self) -> tuple[Model, list[Finding], np.ndarray] | None:
        """Where results stand; kept where the weights are then nearer to those that are expected. Model, findings and
        weights where many rows choose the keys of others and weights hardly are: what rows of Q hold may do that, too.
        """
        model, found = of_values.place(self.target, self.model)
        if not found:
            return None
        read = of_values.solved(model, self.weights)
        if self.misfit(model, scaled=False) < 0.7 * self.misfit(self.model, scaled=False):
            self.model, self.read = model, read
            self.found += found
        elif found[0].wrong > MANY * found[0].of:
            return model, found, read
        return None
