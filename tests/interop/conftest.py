import pytest

from tests.cli.conftest import call  # noqa: F401
from tests.hub import hub  # noqa: F401
from tests.interop.folders import CONFIGS, golden, write


@pytest.fixture(params=CONFIGS)
def kind(request):
    """Each of the families that can be imported, by its model_type."""
    return request.param


@pytest.fixture
def published(kind, tmp_path):
    """The golden model of a family, as its folder."""
    return write(tmp_path / "published", CONFIGS[kind], golden(kind).tensors)
