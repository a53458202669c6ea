#!/usr/bin/env python3
"""The documents say what the code does: docs_test.py LOSSC"""
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
lossc = sys.argv[1]
failures = []


def check(condition, message):
    if not condition:
        failures.append(message)


def output(*arguments):
    return subprocess.run([lossc, *arguments], check=True, capture_output=True, text=True).stdout


table = output("losses", "--markdown")
check(
    (root / "docs/losses.md").read_text() == table,
    "docs/losses.md is not what `lossc losses --markdown` prints; write it anew with that command",
)
check(
    (root / "docs/spec.schema.json").read_text().strip() == output("schema").strip(),
    "docs/spec.schema.json is not what `lossc schema` prints; write it anew with that command",
)

readme = (root / "README.md").read_text()
for name in ["examples/embed.cpp", "examples/specs/gspo_z_ce.json"]:
    check((root / name).read_text().strip() in readme, f"README.md does not show {name} as it is")
plan = output("plan", str(root / "examples/specs/gspo_z_ce.json"))
for line in ["2 regions, 1 seam, 3 passes", "passes    3 (bound 3), 0 re-reads from a row's cache"]:
    check(line in plan and line in readme, f'README.md and the plan do not agree on "{line}"')
for verb in ["plan", "compile", "run", "check", "bench", "losses", "schema", "cache", "doctor"]:
    check(verb in output("--help"), f"lossc --help does not name {verb}")

cache = (root / "docs/cache.md").read_text()
for verb in ["path", "stats", "list", "show", "extract", "verify", "why", "prune", "clear", "export", "import"]:
    check(f"Usage: lossc cache {verb}" in output("cache", verb, "--help"), f"there is no lossc cache {verb}")
    check(f"`lossc cache {verb}" in cache, f"docs/cache.md does not tell of lossc cache {verb}")
sources = "".join(path.read_text() for path in sorted((root / "runtime/cache").glob("*.cpp")))
for name in sorted(set(re.findall(r'"(LOSSC_[A-Z_]+)"', sources))):
    check(f"`{name}`" in cache, f"docs/cache.md does not tell of {name}")

for failure in failures:
    print(failure)
print(f"{'FAILED' if failures else 'passed'}: documents against the code")
sys.exit(1 if failures else 0)
