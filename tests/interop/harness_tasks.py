"""Three small tasks with local data, as docs/harness.md shows them: a choice, a perplexity, an answer."""

import json
from pathlib import Path

CHOICES = [
    {"start": "the cat sees", "ends": ["the river", "a dog", "songs"], "right": 1},
    {"start": "a dog eats", "ends": ["fish", "the stars", "one cat"], "right": 0},
    {"start": "one cat likes", "ends": ["a river", "fish songs", "the dog"], "right": 2},
    {"start": "the river likes", "ends": ["songs", "stars", "a cat"], "right": 1},
]
STORIES = [{"text": "the cat sees a dog . " * 4 + "the dog eats"}, {"text": "one river likes the stars"}]
ANSWERS = [
    {"ask": "the cat sees", "told": "a dog"},
    {"ask": "a", "told": "river"},
    {"ask": "one dog eats the", "told": ""},
]

KINDS = {
    "choices": (
        CHOICES,
        """output_type: multiple_choice
doc_to_text: "{{start}}"
doc_to_choice: "{{ends}}"
doc_to_target: right
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
""",
    ),
    "stories": (
        STORIES,
        """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: bits_per_byte}
""",
    ),
    "answers": (
        ANSWERS,
        """output_type: generate_until
doc_to_text: "{{ask}}"
doc_to_target: "{{told}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 4}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    ),
}


def write_tasks(folder: Path) -> Path:
    """Write the tasks `choices`, `stories` and `answers` and their data."""
    folder.mkdir()
    for name, (items, text) in KINDS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(item) + "\n" for item in items))
        where = json.dumps({"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")})
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {where}\ntest_split: test\n"
        (folder / f"{name}.yaml").write_text(f"{head}{text}metadata: {{version: 1}}\n")
    return folder
