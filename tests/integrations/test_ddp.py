"""Two processes: ranks agree, and a run goes on bit for bit."""

import re

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("transformers")

from processes import differences, run_two_ranks

TRAINERS = "in_lightning,in_transformers"
REFUSED = {
    "other seeds": "rank 1 has another seed than rank 0",
    "packed too late": "attach to the model before wrapping it",
}


def test_ranks_agree_or_are_told_and_a_run_resumes_in_fresh_processes(tmp_path):
    """Dense and packed, with accumulation, clipping and bf16, in both trainers; and the folder was moved."""
    run_two_ranks(TRAINERS, "begin", tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    run_two_ranks(TRAINERS, "resume", tmp_path / "after")
    whole, whole_too, resumed, resumed_too = (
        torch.load(tmp_path / "after" / f"{stage}-{rank}.pt") for stage in ("begin", "resume") for rank in range(2)
    )
    assert differences(whole, whole_too) == []
    for trainer in TRAINERS.split(","):
        for case, sentence in REFUSED.items():
            assert re.search(sentence, whole.pop((trainer, case)))
    assert differences(whole, resumed) == []
    assert differences(whole, resumed_too) == []
    assert all(result["rewirings"] > 2 for result in whole.values())
