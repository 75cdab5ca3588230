"""Every formula is tested in both forms in which losses use it."""

import pytest
from graph_evaluation import Evaluator


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def evaluate(request):
    return Evaluator(jit_compile=request.param)
