"""Puzzles: answers by a slow statement of each problem, words and tokens one for one, windows that are problems."""

import itertools

import numpy as np
import pytest

from diffeqformer.cli.parse import ConfigArguments, arguments_from
from diffeqformer.config import Config, DataConfig, HopsConfig, ModelConfig, PermutationsConfig, PHopConfig, validate
from diffeqformer.data import cache as module
from diffeqformer.data import puzzles
from diffeqformer.data.cache import prepare
from diffeqformer.data.loader import EvaluationBatches, Loader
from diffeqformer.data.tokenizer import END_OF_TEXT
from diffeqformer.errors import BadInput

HOPS = HopsConfig(nodes=5, most_hops=3, queries=4)
P_HOP = PHopConfig(letters=3, length=14, most_hops=3)
PERMUTATIONS = PermutationsConfig(group="A4", most_factors=4)
PUZZLES = [HOPS, P_HOP, PERMUTATIONS]


def words_of(config, count=40, split=0):
    """Problems as words, their ids, and the difficulty of each word."""
    puzzle = config.build()
    ids = np.concatenate(list(puzzle.problems(split, count)))
    text = puzzle.tokenizer().decode_batch(ids.tolist(), skip_special_tokens=False)
    return [one.split(" ") for one in text], ids, puzzle.difficulty(ids)


def test_hops_are_those_of_the_function_that_stands_first():
    for words, _, difficulty in zip(*words_of(HOPS), strict=True):
        values, queries = words[:5], words[5:-1]
        assert sorted(values) == list("01234")
        expected = [0] * 5
        for k, start, answer in zip(queries[::3], queries[1::3], queries[2::3], strict=True):
            power = start
            for _ in range(int(k[1:])):
                power = values[int(power)]
            assert power == answer
            expected += [0, 0, int(k[1:])]
        assert difficulty.tolist() == [*expected, 0]


def test_p_hops_are_what_induction_heads_lead_to():
    answers = 0
    for (first, *rest), _, (_, *difficulty) in zip(*words_of(P_HOP), strict=True):
        p, letters = int(first[1:]), "".join(rest[:-1:2])
        assert all(a != b for a, b in itertools.pairwise(letters))
        for i, (answer, of) in enumerate(zip(rest[1::2], difficulty[1::2], strict=True)):
            place = i
            for _ in range(p):
                place = letters.rfind(letters[place], 0, place) + 1 if place else 0
            assert answer == (letters[place].upper() if place else "-")
            assert of == (p if place else 0)
            answers += place > 0
        assert not any(difficulty[::2])
    assert answers > 200


def test_products_of_permutations_are_what_they_do_to_things_one_after_the_other():
    for words, _, difficulty in zip(*words_of(PERMUTATIONS), strict=True):
        assert words[-1] == END_OF_TEXT
        seen, factors, rest = [], [], iter(enumerate(words[:-1]))
        for _, word in rest:
            if word != "=":
                factors.append(word)
                continue
            i, answer = next(rest)
            images = "1234"
            for factor in factors:
                images = "".join(factor[int(image) - 1] for image in images)
            assert answer == images and difficulty[i] == len(factors)
            seen.append(len(factors))
            factors = []
        assert sorted(seen) == [1, 2, 3, 4] and (difficulty > 0).sum() == 4


@pytest.mark.parametrize(("group", "size"), [("S3", 6), ("A4", 12), ("S4", 24), ("A5", 60), ("S5", 120)])
def test_groups_have_their_sizes_and_are_closed(group, size):
    puzzle = PermutationsConfig(group=group).build()
    assert len(set(puzzle.names)) == size and puzzle.names[0] == "12345"[: int(group[1])]
    table = puzzle._table()  # closed, or making it fails
    assert all(sorted(row) == list(range(size)) for row in table)


@pytest.mark.parametrize("config", PUZZLES)
def test_words_and_tokens_are_one_for_one(config):
    problems, ids, _ = words_of(config)
    tokenizer = config.build().tokenizer()
    for words, row in zip(problems, ids, strict=True):
        assert len(words) == config.context and words[-1] == END_OF_TEXT
        assert tokenizer.encode(" ".join(words[:-1])).ids == row[:-1].tolist()
    assert tokenizer.encode("nonsense").tokens == ["[UNK]"]


@pytest.mark.parametrize("config", PUZZLES)
def test_a_problem_depends_on_seed_split_and_number_alone(config, monkeypatch):
    of = lambda config, split, count: np.concatenate(list(config.build().problems(split, count)))
    monkeypatch.setattr(puzzles, "BLOCK", 8)
    some, more = of(config, 0, 5), of(config, 0, 20)
    assert np.array_equal(some, more[:5]) and len(np.unique(more, axis=0)) == 20
    other = type(config)(**{**vars(config), "seed": 1})
    assert not np.array_equal(of(other, 0, 5), some) and not np.array_equal(of(config, 1, 5), some)


def test_a_cache_holds_problems_their_mask_and_how_many_targets_count(tmp_path, progress, monkeypatch):
    settings = {"problems": 30, "validation_problems": 7}
    config = DataConfig(source="puzzle", puzzle=HopsConfig(nodes=5, queries=4, **settings), cache=str(tmp_path))
    tokens = prepare(config, progress)
    assert tokens.statistics == {
        "name": "puzzle hops", "vocabulary": 2 + 5 + 8,
        "train_documents": 30, "train_bytes": None, "train_tokens": 30 * 18, "train_targets": 30 * 4,
        "validation_documents": 7, "validation_bytes": None, "validation_tokens": 7 * 18, "validation_targets": 7 * 4,
    }  # fmt: skip
    assert tokens.validation_bytes is None and tokens.train_mask.dtype == bool
    _, ids, difficulty = words_of(config.puzzle, 30)
    assert np.array_equal(tokens.train.reshape(30, 18), ids)
    assert np.array_equal(tokens.train_mask.reshape(30, 18), difficulty > 0)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_build", None)
        assert np.array_equal(prepare(config, progress).validation_mask, tokens.validation_mask)
    other = prepare(DataConfig(source="puzzle", puzzle=HopsConfig(nodes=5, queries=4, seed=1, **settings),
                               cache=str(tmp_path)), progress)  # fmt: skip
    assert other.folder != tokens.folder and other.content != tokens.content


def test_a_damaged_mask_is_seen(tmp_path, progress):
    config = DataConfig(source="puzzle", puzzle=HopsConfig(problems=3), cache=str(tmp_path))
    folder = prepare(config, progress).folder
    raw = bytearray((folder / "train.mask").read_bytes())
    raw[0] ^= 1
    (folder / "train.mask").write_bytes(raw)
    assert not prepare(config, progress).train_mask[0]
    assert "train.mask does not match its digest" in progress.lines[0]


@pytest.mark.parametrize("config", PUZZLES)
def test_windows_are_problems_and_masks_lie_over_their_answers(config):
    _, ids, difficulty = words_of(config, 9)
    tokens, mask, context = ids.ravel(), difficulty.ravel() > 0, config.context
    loader = Loader(tokens, context, 2, 0, mask)
    assert len(loader) == 4
    for k in range(8):
        for row, counts in zip(*loader[k], strict=True):
            (number,) = np.nonzero((ids == row[:-1]).all(axis=1))[0]
            assert counts.dtype == bool and counts.tolist() == [*(difficulty[number, 1:] > 0), False]
    batches = list(EvaluationBatches(tokens, context, 4, mask))
    assert np.array_equal(np.concatenate([rows[:, :-1] for rows, _ in batches])[:9], ids)
    counts = np.concatenate([counts for _, counts in batches])
    assert np.array_equal(counts[:9, :-1], difficulty[:, 1:] > 0) and not counts[:, -1].any() and not counts[9:].any()


def test_without_a_mask_batches_are_ids():
    tokens = np.arange(50)
    plain, masked = Loader(tokens, 7, 2, 3), Loader(tokens, 7, 2, 3, tokens % 3 == 0)
    for k in range(6):
        ids, mask = masked[k]
        assert np.array_equal(plain[k], ids) and np.array_equal(mask, ids[:, 1:] % 3 == 0)
        assert np.array_equal(masked.mask_rows(k, 1, 2), mask[1:])


def test_a_split_without_answers_is_refused(tmp_path, progress):
    puzzle = PHopConfig(letters=2, length=2, problems=3)
    sentence = r"^the train split has 18 tokens, but none of them counts as a target\.$"
    with pytest.raises(BadInput, match=sentence):
        prepare(DataConfig(source="puzzle", puzzle=puzzle, cache=str(tmp_path / "cache")), progress)
    assert not (tmp_path / "cache").exists()


def test_another_tokenizer_than_the_puzzles_is_refused(tmp_path, progress):
    own, other = HopsConfig(problems=3), HopsConfig(nodes=4)
    paths = [tmp_path / name for name in ("own.json", "other.json")]
    for path, config in zip(paths, (own, other), strict=True):
        config.build().tokenizer().save(str(path))
    config = lambda path: DataConfig(source="puzzle", puzzle=own, tokenizer=str(path), cache=str(tmp_path / "cache"))
    assert len(prepare(config(paths[0]), progress).train) == 3 * own.context
    with pytest.raises(BadInput, match=f"^data.tokenizer is '{paths[1]}', but a puzzle hops has its own: leave it"):
        prepare(config(paths[1]), progress)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"source": "puzzle"},
            "data.puzzle is not given, but data.source 'puzzle' needs one of 'hops', 'p-hop', 'permutations'.",
        ),
        (
            {"puzzle": HopsConfig()},
            "data.puzzle is given, but data.source 'stdlib' does not read it; set data.source to 'puzzle'.",
        ),
        (
            {"source": "puzzle", "puzzle": HopsConfig(nodes=9)},
            "model.context is 128, but must be 58, the tokens of a problem of data.puzzle 'hops' of this size.",
        ),
        ({"source": "puzzle", "puzzle": PHopConfig(letters=27)}, "data.puzzle.letters is 27, but must be at most 26."),
    ],
)
def test_settings_that_do_not_fit_are_refused(data, sentence):
    with pytest.raises(BadInput) as caught:
        validate(Config(model=ModelConfig(weights="layer"), data=DataConfig(**data)))
    assert str(caught.value) == sentence


def test_a_puzzle_is_chosen_on_the_command_line():
    of = lambda *words: arguments_from(["quickstart-gpt", *words], "train", ConfigArguments).settings.data.puzzle
    assert of("--data.puzzle", "p-hop", "--data.puzzle.letters", "3") == PHopConfig(letters=3)
    assert of("--data.puzzle.nodes", "4") == HopsConfig(nodes=4) and of() is None
    with pytest.raises(BadInput, match=r"^--data\.puzzle\.nodes is given, but data\.puzzle 'p-hop' has no such"):
        of("--data.puzzle", "p-hop", "--data.puzzle.nodes", "3")
