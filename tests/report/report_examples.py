"""A realistic comparison, as `results.json` would hold it."""

import copy
import math
from typing import Any

from diffeqformer.config import Config, to_dict


def _validation(loss: float) -> dict[str, float]:
    return {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2) / 3.39}


def _model(name: str, key: str, weights: str, scheme: str, loss: float, stored: int, speed: float) -> dict[str, Any]:
    def at(step: int) -> float:
        return loss + (7.6 - loss) * math.exp(-((step / 170) ** 0.72)) - 0.02

    config = to_dict(Config(run=f"runs/quickstart/{key}"))
    config["model"] |= {"weights": {"kind": weights}, "scheme": {"kind": scheme}, "vocabulary": 2048}
    config["model"]["horizon"] = "steps" if weights == "layer" else "unit"
    noise = [math.sin(12.9898 * i + len(name)) * 43758.5453 % 1 - 0.5 for i in range(151)]
    return {
        "name": name,
        "key": key,
        "weights": weights,
        "scheme": scheme,
        "steps": 6,
        "evaluations": {"attention": 6.0, "feed_forward": 6.0},
        "parameters": {"stored": stored, "effective": 1_467_648},
        "updates": 1500,
        "tokens": 1500 * 16 * 128,
        "seconds": 1500 * 16 * 128 / speed,
        "tokens_per_second": speed,
        "validation": _validation(loss),
        "depth": [],
        "curve": {
            "train": [[10 * i, at(10 * i) + 0.28 * noise[i]] for i in range(1, 151)],
            "validation": [[250 * i, at(250 * i) + 0.03] for i in range(1, 7)],
        },
        "sample": {
            "prompt": "def read(self, size=-1):\n",
            "text": '    """Read and return up to size bytes.\n\n    If the argument is omitted, None, or negative,\n'
            '    reads and returns all data until EOF.\n    """\n    if size < 0:\n        return self._buffer.read()\n'
            "    self.assertEqual(self._get_data(), [b'a', b'b'])\n",
            "settings": {"temperature": 0.8, "top_k": 50, "top_p": None, "new_tokens": 96, "seed": 0},
        },
        "config": config,
    }


def comparison() -> dict[str, Any]:
    """Three models, as a quickstart writes them."""
    models = [
        _model("DiffEqFormer", "diffeqformer", "time", "euler", 3.98, 2_311_424, 17_230.0),
        _model("Vanilla GPT", "vanilla", "layer", "lie-trotter", 4.08, 1_467_648, 19_870.0),
        _model("Shared weights", "shared", "shared", "euler", 4.40, 476_288, 20_140.0),
    ]
    other = {3: 7.46, 4: 6.1, 5: 5.40, 8: 5.20, 9: 6.09, 12: 6.97}
    models[0]["depth"] = [{"steps": steps, **_validation(loss)} for steps, loss in other.items()]
    return {
        "title": "Quickstart: a continuous-depth language model and its baselines",
        "created": "2026-11-21T09:41:00+00:00",
        "versions": {"diffeqformer": "0.1.0", "jax": "0.10.2", "python": "3.11.13"},
        "device": "cpu (2 cores)",
        "corpus": {
            "name": "Python 3.11 standard library",
            "train_documents": 612,
            "validation_documents": 33,
            "train_bytes": 11_412_331,
            "validation_bytes": 603_120,
            "train_tokens": 3_356_567,
            "validation_tokens": 177_912,
            "vocabulary": 2048,
        },
        "models": models,
    }


def single() -> dict[str, Any]:
    """One model without the optional parts, as a plain training run writes it."""
    results = copy.deepcopy(comparison())
    results["title"] = "runs/wikitext"
    results["models"] = results["models"][1:2]
    results["models"][0]["sample"] = None
    return results
