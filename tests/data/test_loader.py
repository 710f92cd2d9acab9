import re

import numpy as np
import pytest

from diffeqformer.data.loader import EvaluationBatches, Loader
from diffeqformer.errors import BadInput


def tokens_of(count, dtype="<u2"):
    return np.random.default_rng(0).integers(0, 60000, count).astype(dtype)


def window_numbers(batches, context):
    """Which windows batches hold, for tokens that are their own index."""
    return [int(row[0]) // context for batch in batches for row in batch]


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_batches_are_windows_of_the_tokens(dtype):
    loader = Loader(np.arange(1000, dtype=dtype), 7, 4, 3)
    for k in (0, 1, 50, 10**6):
        batch = loader[k]
        assert batch.shape == (4, 8) and batch.dtype == np.int32 and type(batch) is np.ndarray
        assert (np.diff(batch, axis=1) == 1).all() and (batch[:, 0] % 7 == 0).all()


@pytest.mark.parametrize(("count", "windows"), [(8, 1), (14, 1), (15, 2), (1000, 142)])
def test_an_epoch_holds_every_window_once_and_each_is_shuffled_anew(count, windows):
    loader = Loader(np.arange(count, dtype="<u2"), 7, 1, 3)
    assert len(loader) == windows
    epochs = [window_numbers([loader[e * windows + k] for k in range(windows)], 7) for e in range(3)]
    assert all(sorted(epoch) == list(range(windows)) for epoch in epochs)
    if windows > 2:
        assert len({tuple(epoch) for epoch in epochs}) == 3 and list(range(windows)) not in epochs


def test_batches_continue_over_the_end_of_an_epoch():
    tokens = np.arange(7 * 10 + 1, dtype="<u2")
    single, loader = Loader(tokens, 7, 1, 5), Loader(tokens, 7, 4, 5)
    assert len(loader) == 3
    for k in range(8):
        assert np.array_equal(loader[k], np.concatenate([single[4 * k + i] for i in range(4)]))


def test_a_batch_may_be_larger_than_an_epoch():
    loader = Loader(np.arange(15, dtype="<u2"), 7, 5, 0)
    assert len(loader) == 1 and loader[0].shape == (5, 8)


def test_batch_k_depends_on_nothing_but_its_number_and_the_seed(tmp_path):
    tokens = tokens_of(5000)
    tokens.tofile(tmp_path / "tokens")
    mapped = np.memmap(tmp_path / "tokens", "<u2", mode="r")
    straight = [batch for loader in [Loader(tokens, 16, 4, 9)] for batch in (loader[k] for k in range(100))]
    for k in (99, 3, 57, 3):
        assert np.array_equal(Loader(mapped, 16, 4, 9)[k], straight[k])
    assert not np.array_equal(Loader(tokens, 16, 4, 8)[3], straight[3])


def test_too_few_tokens_are_refused_with_both_numbers():
    Loader(tokens_of(129), 128, 2, 0)
    sentence = (
        "the training split has 128 tokens, but a context of 128 needs at least 129: "
        "give more text or a smaller model.context."
    )
    with pytest.raises(BadInput, match=f"^{re.escape(sentence)}$"):
        Loader(tokens_of(128), 128, 2, 0)


def test_a_seed_out_of_range_is_refused():
    Loader(tokens_of(100), 8, 2, 2**32 - 1)
    with pytest.raises(BadInput, match="^the seed of the batches is 4294967296, but must be at least 0 and below"):
        Loader(tokens_of(100), 8, 2, 2**32)


def test_batches_before_the_first_do_not_exist():
    with pytest.raises(IndexError, match="numbered from 0"):
        Loader(tokens_of(100), 8, 2, 0)[-1]


@pytest.mark.parametrize("count", [2, 3, 8, 9, 28, 29, 30, 57, 1000])
def test_evaluation_predicts_every_token_but_the_first_once(count):
    tokens = tokens_of(count)
    batches = EvaluationBatches(tokens, 7, 4)
    targets = []
    for ids, mask in batches:
        assert ids.shape == (4, 8) and ids.dtype == np.int32
        assert mask.shape == (4, 7) and mask.dtype == bool and mask.any()
        assert (ids[:, 1:][~mask] == 0).all()
        targets.append(ids[:, 1:][mask])
        where = sum(map(len, targets[:-1]))
        assert np.array_equal(ids[:, :-1][mask], tokens[where : where + mask.sum()])
    assert np.array_equal(np.concatenate(targets), tokens[1:])
    assert len(batches) == len(targets) == -(-(count - 1) // 28)


def test_evaluation_batches_have_numbers():
    batches = EvaluationBatches(tokens_of(100), 7, 4)
    assert [np.array_equal(batches[k][0], ids) for k, (ids, _) in enumerate(batches)] == [True] * len(batches)
    for k in (-1, len(batches)):
        with pytest.raises(IndexError, match=f"batch {k} was asked for, but there are 4"):
            batches[k]


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_predict_is_refused(count):
    with pytest.raises(BadInput, match=f"^the text to evaluate has {count} tokens, but at least 2 are needed.$"):
        EvaluationBatches(tokens_of(count), 7, 4)


def test_a_spread_of_batches_covers_the_text_from_its_beginning_without_repeats():
    batches = EvaluationBatches(np.arange(101), context=5, batch_size=2)
    assert len(batches) == 10
    assert [int(ids[0, 0]) for ids, _ in batches.spread(4)] == [0, 20, 50, 70]
    for count in (0, 10, 99):
        assert [int(ids[0, 0]) for ids, _ in batches.spread(count)] == list(range(0, 100, 10))


@pytest.mark.parametrize("end", [None, 99])
@pytest.mark.parametrize("mixture", [(), ((60, 1.0), (60, 3.0))])
def test_windows_without_a_target_that_counts_are_left_out(end, mixture):
    """A batch of such windows alone would have no loss; all that count are still drawn."""
    tokens = np.arange(120)
    tokens[9::10] = 99
    mask = (tokens % 40) >= 30  # the last ten of forty; the end of each document, 99, does not count
    loader = Loader(tokens, 8, 2, 3, mask, mixture, end)
    counted = set()
    for k in range(3 * len(loader)):
        ids, counts = loader[k]
        assert counts.any(axis=1).all()
        counted |= set(ids[:, 1:][counts].tolist())
    assert len(counted) > 15 and all(token % 40 >= 30 for token in counted)
    with pytest.raises(BadInput, match="has no window of 8 tokens with a target that counts"):
        Loader(tokens, 8, 2, 3, np.zeros_like(mask), mixture, end)
