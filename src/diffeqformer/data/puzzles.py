"""Puzzles: texts whose answers need depth, generated from a seed as tokens, one for each word."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import permutations
from string import ascii_lowercase, ascii_uppercase
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Int, Integer
from tokenizers import Tokenizer, models, pre_tokenizers

from diffeqformer.config import HopsConfig, PermutationsConfig, PHopConfig
from diffeqformer.config.puzzles import Problems
from diffeqformer.data.tokenizer import END_OF_TEXT

BLOCK = 1000
"""Problems that are generated at a time."""
UNKNOWN = "[UNK]"
C = TypeVar("C", bound=Problems)


class Puzzle(ABC, Generic[C]):
    """A kind of problem.

    **Arguments:** `config`, its settings; `words`, all words that its problems are written with.
    """

    def __init__(self, config: C, words: list[str]):
        self.config = config
        self.ids = {word: i for i, word in enumerate([END_OF_TEXT, UNKNOWN, *words])}
        """The vocabulary: the id of each word."""

    @abstractmethod
    def block(self, random: np.random.Generator) -> Int[np.ndarray, "problem word"]:
        """Generate `BLOCK` problems with their answers, without end-of-text."""

    @abstractmethod
    def difficulty(self, ids: Integer[np.ndarray, "problem context"]) -> Int[np.ndarray, "problem context"]:
        """Return how many steps lead to each token of whole problems as an answer; 0 if it is not an answer.

        Only answers count as targets.
        """

    def problems(self, split: int, count: int) -> Iterator[Int[np.ndarray, "problem context"]]:
        """Generate the first `count` problems of a split (0 training, 1 validation) in blocks, each with end-of-text.

        Each problem depends only on the config's seed, its split and its number.
        """
        for start in range(0, count, BLOCK):
            # Always a whole block, cut afterwards: what a problem is must not depend on `count`.
            words = self.block(np.random.default_rng([self.config.seed, split, start // BLOCK]))
            yield np.pad(words, [(0, 0), (0, 1)], constant_values=self.ids[END_OF_TEXT])[: count - start]

    def tokenizer(self) -> Tokenizer:
        """Return a tokenizer for words separated by spaces, each a token."""
        tokenizer = Tokenizer(models.WordLevel(self.ids, unk_token=UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens([END_OF_TEXT])
        tokenizer.encode_special_tokens = True
        return tokenizer


class Hops(Puzzle[HopsConfig]):
    """Pointer chasing: `f(0) ... f(n-1)` of a random permutation, then queries `fk s f^k(s)`; difficulty k.

    With n = 3: `2 0 1 f2 0 1 f1 1 0`, since f(f(0)) = f(2) = 1 and f(1) = 0.
    """

    def __init__(self, config: HopsConfig):
        hops = [f"f{k}" for k in range(1, config.most_hops + 1)]
        super().__init__(config, [*map(str, range(config.nodes)), *hops])

    def block(self, random: np.random.Generator) -> Int[np.ndarray, "problem word"]:
        c = self.config
        f = random.permuted(np.tile(np.arange(c.nodes), (BLOCK, 1)), axis=1)
        hops = random.integers(1, c.most_hops + 1, (BLOCK, c.queries))
        starts = random.integers(0, c.nodes, hops.shape)
        places = _walk(f, starts, hops)
        queries = np.stack([hops - 1 + self.ids["f1"], starts + self.ids["0"], places + self.ids["0"]], axis=-1)
        return np.concatenate([f + self.ids["0"], queries.reshape(BLOCK, -1)], axis=1)

    def difficulty(self, ids: Integer[np.ndarray, "problem context"]) -> Int[np.ndarray, "problem context"]:
        found = np.zeros(ids.shape, int)
        found[:, self.config.nodes + 2 : -1 : 3] = _number(ids[:, self.config.nodes : -1 : 3], self.ids["f1"])
        return found


class PHop(Puzzle[PHopConfig]):
    """p-hop induction: the word for p, then letters, each followed by its answer in capitals; difficulty p.

    `hop(i)` is the place after the last earlier occurrence of letter i; the answer at i is the letter at
    `hop(hop(...(i)))`, p times, or `-`, which does not count, if a letter on the way has no earlier occurrence. No
    letter follows itself. With p = 1: `p1 a - b - a B c - a C`.

    Source: Sanford, Hsu & Telgarsky 2024, Transformers, Parallel Computation, and Logarithmic Depth, section 4,
    arXiv:2402.09268. There the model does not read the answers; here it does, but no two places hop to the same one.
    """

    def __init__(self, config: PHopConfig):
        hops = [f"p{p}" for p in range(1, config.most_hops + 1)]
        super().__init__(config, [*ascii_lowercase[: config.letters], *hops, "-", *ascii_uppercase[: config.letters]])

    def block(self, random: np.random.Generator) -> Int[np.ndarray, "problem word"]:
        c = self.config
        hops = random.integers(1, c.most_hops + 1, (BLOCK, 1))
        jumps = random.integers(1, c.letters, (BLOCK, c.length))  # never 0, so that no letter follows itself
        letters = np.cumsum(jumps, axis=1) % c.letters
        nowhere, rows = c.length, np.arange(BLOCK)
        after = np.full((BLOCK, c.letters), nowhere)  # of each letter, the place after its last occurrence
        hop = np.full((BLOCK, c.length + 1), nowhere)  # nowhere, the last place, leads to itself
        for i in range(c.length):
            hop[:, i] = after[rows, letters[:, i]]
            after[rows, letters[:, i]] = i + 1
        places = _walk(hop, np.tile(np.arange(c.length), (BLOCK, 1)), hops)
        led = np.take_along_axis(np.pad(letters, [(0, 0), (0, 1)], constant_values=-1), places, axis=1)
        pairs = np.stack([letters + self.ids["a"], led + self.ids["A"]], axis=-1)  # "-" is the word before "A"
        return np.concatenate([hops - 1 + self.ids["p1"], pairs.reshape(BLOCK, -1)], axis=1)

    def difficulty(self, ids: Integer[np.ndarray, "problem context"]) -> Int[np.ndarray, "problem context"]:
        return np.where(ids >= self.ids["A"], _number(ids[:, :1], self.ids["p1"]), 0)


class Permutations(Puzzle[PermutationsConfig]):
    """The word problem of a group: `g1 g2 ... gl = product`, for every l once, in random order; difficulty l.

    A word is a permutation in one-line notation, and the product applies g1 first: `213 132 = 312`. Products are
    separate instead of following every factor: reading the product so far would leave one multiplication to do.

    Source: Liu et al. 2023, Transformers Learn Shortcuts to Automata, arXiv:2210.10749; Merrill, Petty & Sabharwal
    2024, The Illusion of State in State-Space Models, arXiv:2404.08819.
    """

    def __init__(self, config: PermutationsConfig):
        self.elements = _elements(config.group)
        self.names = ["".join(str(i + 1) for i in element) for element in self.elements]
        super().__init__(config, ["=", *self.names])

    def block(self, random: np.random.Generator) -> Int[np.ndarray, "problem word"]:
        size, table = len(self.elements), self._table()
        lengths = random.permuted(np.tile(np.arange(1, self.config.most_factors + 1), (BLOCK, 1)), axis=1)
        answers = np.cumsum(lengths + 2, axis=1) - 1
        words = random.integers(0, size, (BLOCK, self.config.context - 1)) + self.ids[self.names[0]]
        np.put_along_axis(words, answers - 1, self.ids["="], axis=1)
        product = np.zeros(BLOCK, int)  # the first element is the identity
        answered = np.zeros(words.shape, bool)
        np.put_along_axis(answered, answers, True, axis=1)
        for i in range(words.shape[1]):
            factor = words[:, i] - self.ids[self.names[0]]
            words[:, i] = np.where(answered[:, i], product + self.ids[self.names[0]], words[:, i])
            product = np.where(factor < 0, product, table[product, factor])  # "=" is the word before the elements
            product = np.where(answered[:, i], 0, product)
        return words

    def _table(self) -> Int[np.ndarray, "first second"]:
        """Return the group's multiplication table: the number of the product of a first and a second element."""
        number = {tuple(element): i for i, element in enumerate(self.elements)}
        return np.array([[number[tuple(second[first])] for second in self.elements] for first in self.elements])

    def difficulty(self, ids: Integer[np.ndarray, "problem context"]) -> Int[np.ndarray, "problem context"]:
        equals = np.nonzero(ids == self.ids["="])[1].reshape(len(ids), self.config.most_factors)
        found = np.zeros(ids.shape, int)
        # From one `=` to the next come an answer, the factors and `=`; the first, as if one stood at -2 before it.
        np.put_along_axis(found, equals + 1, np.diff(equals, axis=1, prepend=-2) - 2, axis=1)
        return found


def _walk(
    f: Int[np.ndarray, "problem node"], places: Int[np.ndarray, "problem walk"], steps: Int[np.ndarray, "problem #walk"]
) -> Int[np.ndarray, "problem walk"]:
    """Follow f from `places` for `steps` steps each, and return where these walks end."""
    for step in range(1, steps.max() + 1):
        places = np.where(step <= steps, np.take_along_axis(f, places, axis=1), places)
    return places


def _number(ids: Integer[np.ndarray, "*any"], first: int) -> Int[np.ndarray, "*any"]:
    """Number words from ids: 1 for the word with the id `first`, 2 for the next, and so on."""
    return ids.astype(int) - first + 1


def _elements(group: str) -> Int[np.ndarray, "element thing"]:
    """Return all permutations of a symmetric group S, or the even ones of an alternating group A."""
    whole = np.array(list(permutations(range(int(group[1])))))
    even = np.linalg.det(np.eye(whole.shape[1])[whole]) > 0  # the sign of a permutation is its matrix's determinant
    return whole if group[0] == "S" else whole[even]
