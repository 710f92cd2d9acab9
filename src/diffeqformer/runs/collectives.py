"""Communication between devices in a compiled program: its collectives, parsed from XLA's text of the program."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "s8": 1, "u8": 1}
"""Bytes of one element, by XLA's name of its type."""
KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf"= (?P<shape>.*?) (?P<kind>{KINDS})(-start)?\((?P<rest>.*)")
COMPUTATION = re.compile(r"^(ENTRY )?%(?P<name>[^ ]+) \(.*\{$", re.MULTILINE)
LOOP = re.compile(r" while\(.*condition=%(?P<condition>[^,\s]+), body=%(?P<body>[^,\s]+)")
CALLED = re.compile(r" (?:call|conditional)\(.*?(?:to_apply=|computations=\{|_computation=)(?P<names>%[^}\n]*)")
BOUND = re.compile(r"= s\d+\[\] constant\((\d+)\)")
"""Bound of a loop over steps: the one number that its condition compares with."""


class Collective(NamedTuple):
    """A collective operation of a program, and how often it runs."""

    kind: str
    """XLA's name of the operation, such as `all-gather`."""
    bytes: int
    """Size of the whole array: after gathering, before scattering, or on each device for a reduction."""
    devices: tuple[int, ...]
    """The first of the groups of devices that exchange the array."""
    times: int
    """Number of executions in one run of the program."""

    @property
    def sent(self) -> float:
        """Bytes that each device sends in all, around a ring: `(n - 1)/n` of the array, twice that for an all-reduce.

        Source: Patarasuk & Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations.
        """
        n = len(self.devices)
        # A permutation sends the whole array once: its factor cancels the one below.
        passes = {"all-reduce": 2.0, "collective-permute": n / max(n - 1, 1)}.get(self.kind, 1.0)
        return passes * (n - 1) / n * self.bytes * self.times


def collectives(program: str) -> list[Collective]:
    """Parse the collectives of a partitioned program; those in loops count as often as the loops run.

    **Arguments:** `program`, HLO as text, with groups of devices in any of XLA's notations.

    **Raises:** `ValueError` for a loop with collectives whose number of passes is not given in the text.
    """
    starts = [*COMPUTATION.finditer(program)]
    ends = [*(one.start() for one in starts[1:]), len(program)]
    bodies = {one["name"]: program[one.end() : end] for one, end in zip(starts, ends, strict=True)}
    entry = next(one["name"] for one in starts if one[1])

    def walk(name: str, times: int) -> Iterator[Collective]:
        for line in bodies[name].splitlines():
            if found := COLLECTIVE.search(line):
                yield _collective(found, times)
            elif loop := LOOP.search(line):
                if inside := [*walk(loop["body"], times)]:
                    passes = _passes(bodies[loop["condition"]])
                    yield from (one._replace(times=one.times * passes) for one in inside)
            elif called := CALLED.search(line):
                for other in re.findall(r"%([^,\s}]+)", called["names"]):
                    yield from walk(other, times) if other in bodies else ()

    return [*walk(entry, 1)]


def _passes(condition: str) -> int:
    bounds = BOUND.findall(condition)
    if len(bounds) != 1:
        raise ValueError(f"a loop's condition compares with {len(bounds)} numbers:\n{condition}")
    return int(bounds[0])


def _collective(found: re.Match[str], times: int) -> Collective:
    devices, kind = _group(found["rest"]), found["kind"]
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", found["shape"])
    scale = len(devices) if kind == "reduce-scatter" else 1  # its result is one part
    size = sum(math.prod(_numbers(sizes)) * BYTES[dtype] for dtype, sizes in arrays)
    return Collective(kind, scale * size, devices, times)


def _group(rest: str) -> tuple[int, ...]:
    """Parse the first group of devices, written `{{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)` or `mesh['x'=4,'y'=2] {'y'}` (the
    last may have its own order of devices), or the first of `source_target_pairs`."""
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}?", rest):
        return tuple(_numbers(pairs[1])[:2])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return tuple(_numbers(listed[1]))
    if tiled := re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", rest):
        return tuple(_order(tiled[2]).reshape(_numbers(tiled[1]))[0].tolist())
    named = re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?\]T?\(?[\d,]*\)?)\))? \{(.*?)\}", rest)
    if named is None:
        raise ValueError(f"groups of devices in no notation that is known: {rest[:200]}")
    axes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
    order = _order(named[2]) if named[2] else np.arange(math.prod(axes.values()))
    over = re.findall(r"'(\w+)'", named[3])
    cut = tuple(slice(None) if name in over else 0 for name in axes)
    return tuple(order.reshape(*axes.values())[cut].ravel().tolist())


def _order(iota: str) -> np.ndarray:
    """Parse `[2,4]T(1,0)`: numbers from 0 in this shape, with its axes permuted, then flattened."""
    shape, _, permuted = iota.partition("T")
    numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return (numbers.transpose(_numbers(permuted)) if permuted else numbers).ravel()


def _numbers(text: str) -> Sequence[int]:
    return [int(one) for one in re.findall(r"\d+", text)]
