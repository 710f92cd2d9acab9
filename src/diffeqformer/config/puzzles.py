"""Settings of puzzles (docs/puzzles.md): texts whose answers need depth, made from a seed."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from diffeqformer.config.bounds import INT32, MOST_STEPS, setting
from diffeqformer.config.sections import Section


@dataclass(frozen=True)
class Problems(Section):
    """Settings that all puzzles share."""

    problems: int = setting(200_000, least=2, most=INT32)
    """Problems of the training split."""
    validation_problems: int = setting(2_000, least=1, most=INT32)
    """Problems of the validation split."""
    seed: int = setting(0, least=0, most=INT32)
    """Seed of the problems of both splits."""


@dataclass(frozen=True)
class HopsConfig(Problems):
    """Pointer chasing: a permutation f as a list of values, then queries of f applied k times to a start."""

    builder: ClassVar[str] = "diffeqformer.data.puzzles:Hops"

    kind: Literal["hops"] = field(default="hops", kw_only=True)
    nodes: int = setting(10, least=2, most=MOST_STEPS)
    """Values of f."""
    most_hops: int = setting(8, least=1, most=MOST_STEPS)
    """Each k is drawn from 1 to this."""
    queries: int = setting(16, least=1, most=MOST_STEPS)
    """Queries per problem."""

    @property
    def context(self) -> int:
        """Tokens of a problem: values, three words per query, end-of-text."""
        return self.nodes + 3 * self.queries + 1


@dataclass(frozen=True)
class PHopConfig(Problems):
    """p-hop induction (Sanford, Hsu & Telgarsky 2024): letters, each followed by what p induction heads lead to."""

    builder: ClassVar[str] = "diffeqformer.data.puzzles:PHop"

    kind: Literal["p-hop"] = field(default="p-hop", kw_only=True)
    letters: int = setting(4, least=2, most=26)
    """Number of different letters."""
    length: int = setting(48, least=2, most=MOST_STEPS)
    """Letters of a problem."""
    most_hops: int = setting(8, least=1, most=MOST_STEPS)
    """p is drawn for each problem, from 1 to this."""

    @property
    def context(self) -> int:
        """Tokens of a problem: the word for p, each letter and its answer, end-of-text."""
        return 2 * self.length + 2


@dataclass(frozen=True)
class PermutationsConfig(Problems):
    """The word problem of a group of permutations: products of 1, 2, ... elements, in any order."""

    builder: ClassVar[str] = "diffeqformer.data.puzzles:Permutations"

    kind: Literal["permutations"] = field(default="permutations", kw_only=True)
    group: Literal["S5", "A5", "S4", "A4", "S3"] = "S5"
    """All (S) or the even (A) permutations of this many things. S5 and A5 are not solvable, the others are."""
    most_factors: int = setting(8, least=1, most=128)
    """Each problem has one product of every length from 1 to this."""

    @property
    def context(self) -> int:
        """Tokens of a problem: for each product its factors, `=` and the answer; end-of-text."""
        return self.most_factors * (self.most_factors + 5) // 2 + 1


PuzzleConfig = HopsConfig | PHopConfig | PermutationsConfig
