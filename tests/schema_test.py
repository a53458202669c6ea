"""The JSON Schema of loss specs against the reader: both accept and both refuse, wherever a schema can tell.

usage: schema_test.py PARSE_SPEC    (the program built from parse_spec_main.cpp)
"""

import copy
import json
import pathlib
import re
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: the Python package jsonschema is missing (python3-jsonschema)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMA_FILE = ROOT / "docs" / "spec.schema.json"

LOGITS = {"dtype": "bf16", "vocab": 8}
FULL = json.loads(
    re.search(r'full_spec = R"\((.*?)\)";', (ROOT / "tests" / "spec_text.h").read_text(), re.S).group(1)
)


def spec(**members):
    return {"version": 1, "logits": LOGITS, **members}


def child(type_name, **members):
    return spec(losses={"a": {"type": type_name, **members}})


GOOD = [
    FULL,
    spec(metrics=["entropy"]),
    spec(outputs=["lse"]),
    spec(losses={}, metrics=["token_accuracy.sum"]),
    child("cross_entropy", label_smoothing=0),
    child("z_loss", weight=0, inputs={"labels": None}, reduction="none"),
    child("gspo", reduction="divisor", divisor=3, inputs={"old_logprobs": "sampled"}),
    child("gspo", reduction=None, divisor=None, weight=None, inputs=None, count_empty=None),
    child("grpo", scale=1, softcap=None, temperature=2, order="cap_first"),
    child("dpo", beta=0.5),
    spec(
        losses={"a": {"type": "dpo"}},
        metrics=["a.reward_margin.sum", {"name": "a.reward_chosen", "weighting": "token"},
                 {"name": "a.entropy", "weighting": "document"}],
    ),
    child("entropy", direction="minimize"),
    spec(losses={"a": None, "b": {"type": "z_loss"}}, gradient=None, parallel=None, params={"x": None}),
    spec(losses={"a": {"type": "z_loss"}}, gradient={"mode": "in_place", "dtype": "bf16", "form": "dense"}),
    spec(params={"t": 2}, losses={"a": {"type": "distillation", "temperature": "$t"}}),
    {"version": 1.0, "logits": {"dtype": "fp32", "vocab": 1e5}, "outputs": ["logprobs"]},
]

BAD = [
    [],
    3,
    {},
    {"version": 1},
    {"version": 1, "logits": LOGITS},
    spec(losses={}),
    spec(losses={"a": None}, metrics=[], outputs=None),
    spec(metrics=["entropy"], unknown=1),
    {"version": 2, "logits": LOGITS, "metrics": ["entropy"]},
    {"version": True, "logits": LOGITS, "metrics": ["entropy"]},
    {"version": 1, "logits": {"dtype": "bf16", "vocab": 0}, "metrics": ["entropy"]},
    {"version": 1, "logits": {"dtype": "bf16", "vocab": 2147483648}, "metrics": ["entropy"]},
    {"version": 1, "logits": {"dtype": "bf16", "vocab": 1.5}, "metrics": ["entropy"]},
    {"version": 1, "logits": {"dtype": "fp64", "vocab": 8}, "metrics": ["entropy"]},
    {"version": 1, "logits": {"dtype": "bf16", "vocab": 8, "scale": 1e39}, "metrics": ["entropy"]},
    child("zloss"),
    child(None),
    child("z_loss", weight=-1),
    child("z_loss", weight=1e39),
    child("z_loss", weight="1"),
    child("z_loss", temperature=0),
    child("z_loss", softcap=1e-46),
    child("z_loss", epsilon_low=1),
    child("z_loss", divisor=1),
    child("z_loss", reduction="divisor"),
    child("z_loss", reduction="divisor", divisor=None),
    child("z_loss", reduction="sum", divisor=1),
    child("z_loss", reduction="pair_mean"),
    child("gspo", reduction="none"),
    child("dpo", reduction="token_mean"),
    child("dpo", beta=0),
    child("cross_entropy", label_smoothing=1),
    child("cross_entropy", label_smoothing=0.99999999),
    child("cross_entropy", inputs={"labels": None}),
    child("cross_entropy", inputs={"labels": "logits"}),
    child("cross_entropy", inputs={"teacher_logits": "t"}),
    child("entropy", direction="up"),
    child("z_loss", inputs={"cu_seqlens": "cu_b"}),
    child("gspo", inputs={"segment_ids": None}),
    child("gspo", inputs={"num_segments": "n"}),
    child("dpo", inputs={"pairs": "pairs_b"}),
    child("z_loss", inputs={"labels": "ignore_index"}),
    child("z_loss", inputs={"mask": "pairs"}),
    child("distillation", temperature_squared=1),
    spec(losses={"logits": {"type": "z_loss"}}),
    spec(losses={"params": None, "a": {"type": "z_loss"}}),
    spec(losses={"a b": {"type": "z_loss"}}),
    spec(losses={129 * "a": {"type": "z_loss"}}),
    spec(losses={"a": {"type": "z_loss"}}, gradient={"mode": "in_place", "dtype": "fp32"}),
    spec(losses={"a": {"type": "z_loss"}}, gradient={"mode": "add"}),
    spec(losses={"a": {"type": "z_loss"}}, gradient={"form": "factored"}),
    spec(losses={"a": {"type": "z_loss"}}, parallel={"model": "tp"}),
    spec(losses={"a": {"type": "z_loss"}}, parallel={"vocab": "a b"}),
    spec(metrics=["entropy", "entropy"]),
    spec(metrics=["perplexity"]),
    spec(metrics=["entropy.mean"]),
    spec(metrics=[{"weighting": "document"}]),
    spec(metrics=[{"name": "entropy", "weighting": "documents"}]),
    spec(metrics=[None]),
    spec(losses={"a": {"type": "gspo"}}, metrics=["a.ratio_sum.sum"]),
    spec(losses={"a": {"type": "gspo"}}, metrics=["a.advantage_max.count"]),
    spec(losses={"a": {"type": "gspo"}}, metrics=[{"name": "a.ratio_sum", "weighting": "document"}]),
    spec(losses={"a": {"type": "gspo"}}, metrics=[{"name": "a.tokens", "weighting": "document"}]),
    spec(losses={"a": {"type": "gspo"}}, metrics=["a.segments.sum"]),
    spec(losses={"a": {"type": "dpo"}}, metrics=[{"name": "a.reward_margin", "weighting": "document"}]),
    spec(losses={"a": {"type": "dpo"}}, metrics=[{"name": "a.reward_margin.sum", "weighting": "document"}]),
    spec(outputs=["loss"]),
    spec(outputs=["lse", "lse"]),
    spec(params={"a-b": 1}, metrics=["entropy"]),
]

# What only the reader can know: names that must exist, or be used, elsewhere in the spec, and what they stand for.
READER_ALONE = [
    child("z_loss", weight="$x"),
    spec(params={"x": 1}, metrics=["entropy"]),
    spec(params={"x": -1}, losses={"a": {"type": "z_loss", "weight": "$x"}}),
    spec(params={"x": 0.5}, losses={"a": {"type": "cross_entropy", "label_smoothing": "$x", "scale": "$x"}}),
    spec(metrics=["a.entropy"]),
    spec(losses={"a": {"type": "z_loss"}}, metrics=["a.ratio"]),
    spec(losses={"a": {"type": "z_loss"}}, outputs=["b.loss"]),
    spec(losses={"a": {"type": "z_loss"}}, tensors={"teacher_logits": {"dtype": "bf16"}}),
    spec(losses={"a": {"type": "z_loss"}}, tensors={"labels": {"dtype": "bf16"}}),
    spec(losses={"a": {"type": "distillation"}}, tensors={"teacher_logits": {"space": "rows"}}),
    spec(losses={"a": {"type": "distillation", "inputs": {"teacher_logits": "labels"}}}),
    spec(metrics=["entropy", {"name": "entropy"}]),
    spec(losses={"a": {"type": "dpo"}}, outputs=["a.loss"]),
    spec(losses={"a": {"type": "z_loss", "inputs": {"labels": None}}}, metrics=["a.token_accuracy"]),
]
READER_ALONE_MESSAGES = re.compile(
    r"nothing uses|no child uses|params names nothing|allowed: \"\$|, and params\.|two params"
    r"|found the metric |names too|outputs\[\d+\]: found the string \"\w+\.loss\""
    r"|which needs labels, and losses\.\w+\.inputs\.labels is null"
    r"|found a (dtype|space) for |one kind for one name|gradient\.dtype: found null"
)

REPLACEMENTS = [None, True, -1, 0, 0.5, 2, 1e300, "", "x", "$tau", "a b", [], {}, ["x"], {"x": 1}]


def mutants(value):
    """Every spec that differs from `value` in one place: a member replaced, removed or added."""
    if isinstance(value, dict):
        for key in value:
            without = dict(value)
            del without[key]
            yield without
            yield {**without, key + "_": value[key]}
            for changed in mutants(value[key]):
                yield {**value, key: changed}
        yield {**value, "x": 1}
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield value[:i] + value[i + 1 :]
            for changed in mutants(item):
                yield value[:i] + [changed] + value[i + 1 :]
        if value:
            yield value + [copy.deepcopy(value[0])]
    yield from REPLACEMENTS


def read_all(parse_spec, specs):
    lines = "".join(json.dumps(s) + "\n" for s in specs)
    result = subprocess.run([parse_spec], input=lines, capture_output=True, text=True, check=True)
    answers = result.stdout.splitlines()
    assert len(answers) == len(specs), f"{len(answers)} answers to {len(specs)} specs"
    return answers


def main():
    parse_spec = sys.argv[1]
    text = subprocess.run([parse_spec, "--schema"], capture_output=True, text=True, check=True).stdout
    failures = []
    if not SCHEMA_FILE.exists() or SCHEMA_FILE.read_text() != text:
        failures.append(f"docs/spec.schema.json is not the generated text; regenerate it with\n"
                        f"    {parse_spec} --schema > {SCHEMA_FILE}")
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    specs = []
    for kind, table in (("good", GOOD), ("bad", BAD), ("reader alone", READER_ALONE)):
        specs += [(kind, s) for s in table]
    changed = {json.dumps(m): m for s in GOOD for m in mutants(s)}
    specs += [("changed", m) for m in changed.values()]
    answers = read_all(parse_spec, [s for _, s in specs])

    agreed = 0
    for (kind, s), answer in zip(specs, answers):
        reader, accepts = answer.startswith("ok "), validator.is_valid(s)
        if kind == "changed":
            right = reader == accepts or (accepts and READER_ALONE_MESSAGES.search(answer))
        else:
            right = (reader, accepts) == {"good": (True, True), "bad": (False, False),
                                          "reader alone": (False, True)}[kind]
        if right and reader:
            # The canonical text is a spec too.
            right = validator.is_valid(json.loads(answer[3:]))
        agreed += bool(right)
        if not right:
            failures.append(f"{kind}: {json.dumps(s)}\n    reader: {answer}\n    schema: "
                            f"{'ok' if accepts else jsonschema.exceptions.best_match(validator.iter_errors(s)).message}")
    print(f"{agreed} of {len(specs)} specs as expected")
    for failure in failures[:20]:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
