"""What all figures share: axes."""

import pytest
from matplotlib.figure import Figure

from diffeqformer.report.figures import log_axis


@pytest.mark.parametrize("low", [0.013, 1.0, 3.3, 730.0, 123456.0])
@pytest.mark.parametrize("factor", [1.02, 1.3, 3.0, 4.0, 5.5, 6.0, 19.0, 25.0, 290.0, 600.0, 1e3, 1e9])
def test_a_logarithmic_axis_has_several_ticks_however_far_it_spans(low, factor):
    axis = Figure().subplots()
    axis.plot([0, 1], [low, low * factor])
    log_axis(axis, "y")
    bottom, top = axis.get_ylim()
    seen = [tick for tick in axis.get_yticks() if bottom <= tick <= top]
    assert 3 < len(seen) < 13
    written = [axis.yaxis.get_major_formatter()(tick) for tick in seen]
    assert len(set(written)) == len(seen) and [float(label) for label in written] == pytest.approx(seen)
