"""The lossc command: verbs, exit statuses, JSON, errors, and a batch against numpy.

Usage: cli_test.py LOSSC [unittest arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("numpy is missing: skipped")
    sys.exit(77)

import safetensors_np
from safetensors_np import BFloat16

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPECS = os.path.join(ROOT, "examples", "specs")
LOSSC = ""
HAS_CPU = True
DEVICE = "cpu"

VOCAB = 37
CE_Z = {
    "version": 1,
    "logits": {"dtype": "fp32", "vocab": VOCAB},
    "losses": {"ce": {"type": "cross_entropy"}, "z": {"type": "z_loss", "weight": 0.01}},
    "metrics": ["entropy", "token_accuracy"],
    "outputs": ["logprobs", "ce.loss"],
}


def lossc(*arguments, stdin=None):
    return subprocess.run(
        [LOSSC, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=300, check=False
    )


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def ce_z_reference(logits, labels, mask, z_weight=0.01):
    """Cross-entropy + z-loss in double precision: scalars, row outputs and the gradient."""
    x = logits.astype(np.float64)
    counts = (labels >= 0) & mask
    n = max(counts.sum(), 1)
    safe = np.where(labels >= 0, labels, 0)
    logp = log_softmax(x)
    p = np.exp(logp)
    lse = x.max(-1) + np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1))
    label_logp = np.take_along_axis(logp, safe[..., None], -1)[..., 0]
    onehot = np.eye(x.shape[-1])[safe]
    ce = np.where(counts, -label_logp, 0)
    gradient = (p - onehot + 2 * z_weight * lse[..., None] * p) / n
    scalars = {
        "loss.ce": ce.sum() / n,
        "loss.z": np.where(counts, lse**2, 0).sum() / n,
        "metric.entropy": np.where(counts, -(p * logp).sum(-1), 0).sum() / n,
        "metric.token_accuracy": np.where(counts, x.argmax(-1) == labels, 0).sum() / n,
    }
    scalars["loss"] = scalars["loss.ce"] + z_weight * scalars["loss.z"]
    rows = {"output.logprobs": np.where(counts, label_logp, 0), "output.ce.loss": ce}
    return scalars, rows, np.where(counts[..., None], gradient, 0)


def batch(shape, seed=7, vocab=VOCAB):
    random = np.random.default_rng(seed)
    logits = (3 * random.standard_normal((*shape, vocab))).astype(np.float32)
    labels = random.integers(0, vocab, shape)
    labels[..., 0] = -100
    mask = random.random(shape) < 0.8
    return logits, labels, mask


class Command(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text if isinstance(text, str) else json.dumps(text))
        return self.path(name)

    def ok(self, *arguments, stdin=None, warnings=False):
        result = lossc(*arguments, stdin=stdin)
        self.assertEqual(result.returncode, 0, result.stderr)
        if not warnings:
            self.assertEqual(result.stderr, "")
        return result.stdout

    def fails(self, status, *arguments, stdin=None, says=()):
        """One message `lossc: ...` on standard error, nothing on standard output."""
        result = lossc(*arguments, stdin=stdin)
        self.assertEqual(result.returncode, status, (result.stdout, result.stderr))
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("lossc: "), result.stderr)
        self.assertNotIn("defect", result.stderr)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.stderr)
        return result.stderr


class Usage(Command):
    VERBS = ["plan", "compile", "run", "check", "bench", "losses", "schema", "cache", "doctor"]

    def test_help_and_version(self):
        self.assertRegex(self.ok("--version"), r"^lossc \d+\.\d+\.\d+\n$")
        text = self.ok("--help")
        for verb in self.VERBS:
            self.assertIn(verb, text)
            self.assertIn(f"Usage: lossc {verb} ", self.ok(verb, "--help"))

    def test_wrong_usage_is_2(self):
        self.fails(2, says="--help")
        self.fails(2, "plam", says=['did you mean "plan"', "--help"])
        self.fails(2, "plan", says="lossc plan --help")
        self.fails(2, "plan", "--nonsense", os.path.join(SPECS, "ce_z.json"))
        self.fails(2, "plan", "--json", "--math", os.path.join(SPECS, "ce_z.json"))
        self.fails(2, "plan", "--graph", "fold", os.path.join(SPECS, "ce_z.json"))
        self.fails(2, "run", os.path.join(SPECS, "ce_z.json"), says="--in")
        self.fails(2, "check", os.path.join(SPECS, "ce_z.json"), "--seed", "x")
        self.fails(2, "losses", "focal")

    def test_wrong_spec_is_2(self):
        for verb in ["plan", "check"]:
            self.fails(2, verb, "-", stdin="{", says="standard input")
            wrong = json.loads(json.dumps(CE_Z))
            wrong["losses"]["ce"]["type"] = "cross_entropi"
            name = self.write("wrong.json", wrong)
            self.fails(2, verb, name, says=["wrong.json", "losses.ce.type", 'did you mean "cross_entropy"'])
            with open(self.path("bytes.json"), "wb") as file:
                file.write(b'{"version": 1, "x": "\xff"}')
            self.fails(2, verb, self.path("bytes.json"), says="UTF-8")
            self.fails(2, verb, "-", stdin="[" * 100000)

    def test_missing_files_are_1(self):
        self.fails(1, "plan", self.path("none.json"), says=["none.json", "No such file"])
        self.fails(1, "plan", self.folder.name, says="folder")
        spec = self.write("spec.json", CE_Z)
        self.fails(1, "plan", spec, "--html", self.path("no/such/page.html"), says="page.html")
        self.fails(1, "check", spec, "--in", self.path("none.safetensors"), says="none.safetensors")


class Plan(Command):
    def test_every_ready_spec(self):
        names = sorted(os.listdir(SPECS))
        self.assertGreaterEqual(len(names), 7)
        for name in names:
            with self.subTest(name):
                spec = os.path.join(SPECS, name)
                plan = json.loads(self.ok("plan", spec, "--json"))
                for key in ["prologue", "regions", "seams", "epilogue"]:
                    self.assertIsInstance(plan[key], list, key)
                self.assertEqual(len(plan["seams"]), max(0, len(plan["regions"]) - 1))
                self.assertGreaterEqual(plan["passes"], plan["bound_passes"])
                self.assertGreaterEqual(plan["bytes_per_row"], plan["bound_bytes_per_row"])
                self.assertGreaterEqual(plan["extra_reads"], 0)
                self.assertIn(str(plan["passes"]), self.ok("plan", spec))

    def test_passes_of_known_combinations(self):
        def passes(name):
            return json.loads(self.ok("plan", os.path.join(SPECS, name), "--json"))["passes"]

        self.assertEqual(passes("ce_z.json"), 2)  # read, write
        self.assertEqual(passes("grpo_entropy.json"), 2)
        self.assertEqual(passes("gspo_z_ce.json"), 3)  # read, seam, read + write
        self.assertEqual(passes("gspo_distill.json"), 4)  # and the teacher once, in the last region
        self.assertEqual(passes("logprobs_entropy.json"), 1)

    def test_spec_from_standard_input_and_key(self):
        first = json.loads(self.ok("plan", "-", "--json", stdin=json.dumps(CE_Z)))
        other = json.loads(json.dumps(CE_Z))
        other["losses"] = dict(reversed(other["losses"].items()))
        other["losses"]["z"]["weight"] = 0.5
        second = json.loads(self.ok("plan", "-", "--json", stdin=json.dumps(other)))
        if HAS_CPU:
            self.assertRegex(first["key"], r"^[0-9a-f]{16,}$")
            self.assertEqual(first["key"], second["key"])
        other["logits"]["vocab"] = 41
        third = json.loads(self.ok("plan", "-", "--json", stdin=json.dumps(other)))
        if HAS_CPU:
            self.assertNotEqual(first["key"], third["key"])

    def test_math_and_graph(self):
        spec = self.write("spec.json", CE_Z)
        math_text = self.ok("plan", spec, "--math")
        self.assertIn("ce", math_text)
        self.assertIn("labels", math_text)
        built = self.ok("plan", spec, "--graph", "build")
        self.assertIn("loss.ce = ", built)
        self.assertNotIn("grad.", built)
        self.assertIn("grad.", self.ok("plan", spec, "--graph", "differentiate"))
        self.assertIn("log_sum", self.ok("plan", spec, "--graph", "simplify"))
        self.assertNotIn("log_sum", built)

    def test_source(self):
        if not HAS_CPU:
            self.fails(1, "plan", os.path.join(SPECS, "ce_z.json"), "--source", says="LOSSC_ENABLE_LLVM")
            return
        self.assertIn("define", self.ok("plan", os.path.join(SPECS, "ce_z.json"), "--source"))

    def test_page_stands_alone(self):
        for name in sorted(os.listdir(SPECS)):
            with self.subTest(name):
                page_file = self.path(name + ".html")
                self.assertEqual(self.ok("plan", os.path.join(SPECS, name), "--html", page_file), "")
                with open(page_file, encoding="utf-8") as file:
                    page = file.read()
                self.assertTrue(page.lower().startswith("<!doctype html>"))
                self.assertIn("<svg", page)
                for outside in ["http://", "https://", "src=", "@import", "url(", "<script", "<link"]:
                    self.assertNotIn(outside, page.replace("http://www.w3.org/2000/svg", ""), outside)
                parse_markup(page)

    def test_page_of_gradient_modes(self):
        for mode in ["accumulate", "in_place", "none"]:
            page_file = self.path("page.html")
            self.ok("plan", "-", "--html", page_file, stdin=json.dumps({**CE_Z, "gradient": {"mode": mode}}))
            with open(page_file, encoding="utf-8") as file:
                page = file.read()
            parse_markup(page)
            self.assertEqual(page.count(">read grad_logits<"), int(mode == "accumulate"))
            self.assertEqual(page.count(">write grad_logits<"), int(mode != "none"))


def parse_markup(page):
    """Every element that is opened is closed, in order; text holds no bare < or &."""
    from html.parser import HTMLParser

    class Checker(HTMLParser):
        VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}

        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attributes):
            names = [name for name, _ in attributes]
            assert len(names) == len(set(names)), (tag, names)
            if tag not in self.VOID:
                self.open.append(tag)

        def handle_startendtag(self, tag, attributes):
            pass

        def handle_endtag(self, tag):
            assert self.open and self.open[-1] == tag, (tag, self.open[-5:], self.getpos())
            self.open.pop()

    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open, checker.open


class Run(Command):
    def run_batch(self, spec, tensors, *arguments, status=0, warnings=False):
        batch_file, out = self.path("batch.safetensors"), self.path("result.safetensors")
        safetensors_np.save(batch_file, tensors)
        if "--device" not in arguments:
            arguments = ("--device", DEVICE, *arguments)
        result = lossc("run", self.write("spec.json", spec), "--in", batch_file, "--out", out, "--json", *arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        if status == 0 and not warnings:
            self.assertEqual(result.stderr, "")
        self.stderr = result.stderr
        return json.loads(result.stdout), safetensors_np.load(out)

    def check_ce_z(self, shape, gradient_rtol=2e-6, **changes):
        logits, labels, mask = batch(shape)
        spec = {**CE_Z, **changes}
        tensors = {"logits": logits, "labels": labels, "mask": mask}
        scalars, rows, gradient = ce_z_reference(logits, labels, mask)
        printed, written = self.run_batch(spec, tensors)
        # fp32 results of sums over at most 2^6 rows of values of order 1 to 100, each right to a few ulp (1.2e-7).
        for name, value in scalars.items():
            self.assertAlmostEqual(printed["scalars"][name], value, delta=2e-6 * max(1, abs(value)), msg=name)
            self.assertEqual(written[name].shape, ())
            self.assertEqual(np.float32(printed["scalars"][name]), written[name])
        self.assertEqual(printed["loss"], printed["scalars"]["loss"])
        for name, value in rows.items():
            self.assertEqual(written[name].shape, shape)
            np.testing.assert_allclose(written[name], value, rtol=0, atol=2e-6 * 10, err_msg=name)
        # p - 1 is formed in fp32: absolute errors of a few ulp of 1 / n, then relative ones of p.
        scale = 1 / max(((labels >= 0) & mask).sum(), 1)
        np.testing.assert_allclose(written["grad_logits"], gradient, rtol=gradient_rtol, atol=1e-6 * scale)
        self.assertEqual(written["grad_logits"].shape, logits.shape)
        ignored = ~((labels >= 0) & mask)
        self.assertTrue((written["grad_logits"][ignored] == 0).all())
        return printed, written

    def test_cross_entropy_and_z_loss(self):
        printed, _ = self.check_ce_z((24,))
        self.assertEqual(printed["bad_rows"], 0)
        self.assertIsNone(printed["first_bad_row"])
        self.assertEqual(
            set(printed["tensors"]),
            {"loss", "loss.ce", "loss.z", "metric.entropy", "metric.token_accuracy"}
            | {"output.logprobs", "output.ce.loss", "grad_logits"},
        )
        metadata = safetensors_np.metadata(self.path("result.safetensors"))
        self.assertEqual(metadata["key"], printed["key"])
        if HAS_CPU:
            plan = json.loads(self.ok("plan", self.path("spec.json"), "--json"))
            self.assertEqual(plan["key"], printed["key"])

    def test_batch_sequence_vocab(self):
        self.check_ce_z((3, 8))

    def test_bf16(self):
        logits, labels, mask = batch((16,))
        spec = {**CE_Z, "logits": {"dtype": "bf16", "vocab": VOCAB}}
        tensors = {"logits": BFloat16(logits), "labels": labels.astype(np.int32), "mask": mask}
        scalars, _, gradient = ce_z_reference(safetensors_np.to_bf16(logits), labels, mask)
        printed, written = self.run_batch(spec, tensors)
        self.assertAlmostEqual(printed["loss"], scalars["loss"], delta=2e-6 * abs(scalars["loss"]))
        # One rounding to bf16 (half a unit of 8 bits: 2^-8 relative at most) of a value that is right to fp32.
        np.testing.assert_allclose(written["grad_logits"], gradient, rtol=1.001 * 2**-8, atol=1e-8)

    def test_interpreter(self):
        logits, labels, mask = batch((8,))
        tensors = {"logits": logits, "labels": labels, "mask": mask}
        scalars, _, gradient = ce_z_reference(logits, labels, mask)
        printed, written = self.run_batch(CE_Z, tensors, "--device", "interpreter")
        self.assertEqual(printed["device"], "interpreter")
        # Double precision, rounded once to fp32.
        self.assertAlmostEqual(printed["loss"], scalars["loss"], delta=6e-8 * scalars["loss"])
        np.testing.assert_allclose(written["grad_logits"], gradient, rtol=6e-8, atol=1e-45)

    def test_padded_vocabulary(self):
        logits, labels, mask = batch((8,))
        padded = np.concatenate([logits, np.full((8, 5), 1e30, np.float32)], axis=1)
        _, _, gradient = ce_z_reference(logits, labels, mask)
        _, written = self.run_batch(CE_Z, {"logits": padded, "labels": labels, "mask": mask})
        self.assertEqual(written["grad_logits"].shape, (8, VOCAB + 5))
        self.assertTrue((written["grad_logits"][:, VOCAB:] == 0).all())
        np.testing.assert_allclose(written["grad_logits"][:, :VOCAB], gradient, rtol=2e-6, atol=1e-7)

    def test_gradient_modes(self):
        logits, labels, mask = batch((8,))
        tensors = {"logits": logits, "labels": labels, "mask": mask}
        _, plain = self.run_batch(CE_Z, tensors)
        before = np.random.default_rng(3).standard_normal(logits.shape).astype(np.float32)
        accumulate = {**CE_Z, "gradient": {"mode": "accumulate"}}
        _, added = self.run_batch(accumulate, {**tensors, "grad_logits": before})
        # One fp32 addition: half an ulp of the sum, at most 4.
        np.testing.assert_allclose(added["grad_logits"], before + plain["grad_logits"].astype(np.float64), atol=2.5e-7)
        _, from_zero = self.run_batch(accumulate, tensors)
        np.testing.assert_array_equal(from_zero["grad_logits"], plain["grad_logits"])
        _, in_place = self.run_batch({**CE_Z, "gradient": {"mode": "in_place"}}, tensors)
        np.testing.assert_array_equal(in_place["grad_logits"], plain["grad_logits"])
        np.testing.assert_array_equal(safetensors_np.load(self.path("batch.safetensors"))["logits"], logits)
        _, none = self.run_batch({**CE_Z, "gradient": {"mode": "none"}}, tensors)
        self.assertNotIn("grad_logits", none)
        self.assertEqual(none["loss"], plain["loss"])

    def test_set(self):
        logits, labels, mask = batch((8,))
        tensors = {"logits": logits, "labels": labels, "mask": mask}
        printed, _ = self.run_batch(CE_Z, tensors, "--set", "z.weight=2")
        scalars, _, _ = ce_z_reference(logits, labels, mask, z_weight=2)
        self.assertAlmostEqual(printed["loss"], scalars["loss"], delta=2e-6 * scalars["loss"])
        spec, data = self.path("spec.json"), self.path("batch.safetensors")
        run = ["run", spec, "--in", data, "--device", DEVICE]
        self.fails(2, *run, "--set", "z.wieght=2", says='did you mean "z.weight"')
        self.fails(2, *run, "--set", "z.weight=-1", says="z.weight")
        for text in ["z.weight", "z.weight=", "=1", "z.weight=1x", "z.weight=nan"]:
            self.fails(2, *run, "--set", text)
        # An option's value does not swallow the spec.
        self.ok("run", "--in", data, "--device", DEVICE, "--set", "z.weight=2", spec)

    def test_set_a_shared_parameter(self):
        logits, labels, mask = batch((8,))
        tensors = {"logits": logits, "labels": labels, "mask": mask}
        losses = {name: {**loss, "temperature": "$tau"} for name, loss in CE_Z["losses"].items()}
        shared = {**CE_Z, "params": {"tau": 1.0}, "losses": losses, "outputs": [], "metrics": []}
        scalars, _, _ = ce_z_reference(logits, labels, mask)
        printed, _ = self.run_batch(shared, tensors)
        self.assertAlmostEqual(printed["loss"], scalars["loss"], delta=2e-6 * scalars["loss"])
        scalars, _, _ = ce_z_reference(logits / 2, labels, mask)
        printed, _ = self.run_batch(shared, tensors, "--set", "params.tau=2")
        self.assertAlmostEqual(printed["loss"], scalars["loss"], delta=2e-6 * scalars["loss"])
        self.assertAlmostEqual(printed["scalars"]["loss.z"], scalars["loss.z"], delta=2e-6 * scalars["loss.z"])
        run = ["run", self.path("spec.json"), "--in", self.path("batch.safetensors"), "--device", DEVICE]
        self.fails(2, *run, "--set", "ce.temperature=2", says="ce.temperature")

    def test_a_spec_that_reads_no_logits(self):
        logits, labels, _ = batch((8,))
        spec = {"version": 1, "logits": CE_Z["logits"], "metrics": ["entropy.count"]}
        printed, _ = self.run_batch(spec, {"logits": logits, "labels": labels})
        self.assertEqual(printed["scalars"]["metric.entropy.count"], 7)

    def test_help_names_the_devices(self):
        text = self.ok("run", "--help")
        self.assertIn("interpreter", text)
        self.assertEqual("this build has: cpu" in " ".join(text.split()), HAS_CPU)

    def test_table_without_out(self):
        logits, labels, mask = batch((8,))
        data = self.path("batch.safetensors")
        safetensors_np.save(data, {"logits": logits, "labels": labels, "mask": mask})
        text = self.ok("run", "-", "--in", data, "--device", DEVICE, stdin=json.dumps(CE_Z))
        scalars, _, _ = ce_z_reference(logits, labels, mask)
        table = dict(line.split() for line in text.splitlines())
        self.assertEqual(set(table), set(scalars))
        self.assertAlmostEqual(float(table["loss"]), scalars["loss"], delta=1e-5 * scalars["loss"])

    def test_explain_row(self):
        logits, labels, mask = batch((8,))
        mask[3] = True
        labels[3] = 5
        printed, _ = self.run_batch(CE_Z, {"logits": logits, "labels": labels, "mask": mask}, "--explain-row", "3")
        self.assertIn("ce", printed["explanation"])
        spec, data = self.path("spec.json"), self.path("batch.safetensors")
        self.assertIn("ce", self.ok("run", spec, "--in", data, "--device", DEVICE, "--explain-row", "3"))
        for row in ["8", "-1"]:
            self.fails(2, "run", spec, "--in", data, "--device", DEVICE, "--explain-row", row, says="8 rows")

    def test_bad_rows_are_written_then_1(self):
        logits, labels, mask = batch((8,))
        mask[:] = True
        labels[5] = VOCAB
        printed, written = self.run_batch(CE_Z, {"logits": logits, "labels": labels, "mask": mask}, status=1)
        self.assertEqual((printed["bad_rows"], printed["first_bad_row"]), (1, 5))
        self.assertEqual(printed["loss"], "nan")
        self.assertTrue(self.stderr.startswith("lossc: "), self.stderr)
        self.assertIn("row 5", self.stderr)
        self.assertTrue(np.isnan(written["output.logprobs"][5]))
        self.assertTrue(np.isfinite(written["output.logprobs"][[1, 2, 3, 4, 6, 7]]).all())

    def test_wrong_batches(self):
        logits, labels, mask = batch((8,))
        spec = self.write("spec.json", CE_Z)
        data = self.path("batch.safetensors")

        def refused(tensors, status, *says):
            safetensors_np.save(data, tensors)
            self.fails(status, "run", spec, "--in", data, "--device", DEVICE, "--out", self.path("out"), says=says)
            self.assertFalse(os.path.exists(self.path("out")))

        refused({"labels": labels}, 2, "logits")
        refused({"logits": logits}, 2, "labels")
        refused({"logits": logits.astype(np.float64), "labels": labels}, 2, "fp64", "fp32")
        refused({"logits": logits[:, :-1], "labels": labels}, 2, str(VOCAB))
        refused({"logits": logits, "labels": labels[:-1]}, 2, "labels", "8")
        refused({"logits": logits[0], "labels": labels}, 2, "logits")
        with open(data, "r+b") as file:
            file.truncate(100)
        self.fails(1, "run", spec, "--in", data, "--device", DEVICE, says="batch.safetensors")
        self.fails(1, "run", spec, "--in", data, "--device", "tpu", says="tpu")

    def test_tensors_that_nothing_reads(self):
        logits, labels, mask = batch((8,))
        tensors = {"logits": logits, "labels": labels, "mask": mask, "advantages": np.ones(8, np.float32)}
        printed, _ = self.run_batch(CE_Z, tensors, warnings=True)
        self.assertEqual(self.stderr, "lossc: warning: the spec does not use tensor 'advantages' of the batch\n")
        self.assertEqual(printed["bad_rows"], 0)

    def test_nothing_to_do(self):
        logits, labels, mask = batch((8,))
        labels[:] = -100
        printed, written = self.run_batch(CE_Z, {"logits": logits, "labels": labels, "mask": mask})
        self.assertEqual(printed["loss"], 0)
        self.assertTrue((written["grad_logits"] == 0).all())
        empty = np.zeros((0, VOCAB), np.float32)
        printed, written = self.run_batch(CE_Z, {"logits": empty, "labels": np.zeros(0, np.int64)})
        self.assertEqual(printed["loss"], 0)
        self.assertEqual(written["grad_logits"].shape, (0, VOCAB))

    def test_segments_and_pairs(self):
        logits, labels, _ = batch((12,))
        labels[0] = 1
        logp = log_softmax(logits.astype(np.float64))[np.arange(12), labels]
        reference = (logp + np.linspace(-0.5, 0.5, 12)).astype(np.float32)
        ids = np.array([0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 2, -1])
        pairs = np.array([[0, 1], [3, 2]])
        losses = {"dpo": {"type": "dpo", "beta": 0.2}}
        spec = {**CE_Z, "losses": losses, "metrics": ["dpo.reward_accuracy"], "outputs": []}
        total = [np.sum((logp - reference)[ids == s]) for s in range(4)]
        margins = np.array([0.2 * (total[c] - total[r]) for c, r in pairs])
        printed, _ = self.run_batch(
            spec,
            {"logits": logits, "labels": labels, "ref_logprobs": reference, "segment_ids": ids, "pairs": pairs,
             "num_segments": np.int64(4)},
        )
        self.assertAlmostEqual(printed["loss"], np.log1p(np.exp(-margins)).mean(), delta=2e-6)
        self.assertAlmostEqual(printed["scalars"]["metric.dpo.reward_accuracy"], (margins > 0).mean(), delta=1e-6)


class Check(Command):
    def test_every_ready_spec_with_losses(self):
        for name in sorted(os.listdir(SPECS)):
            with self.subTest(name):
                spec = os.path.join(SPECS, name)
                with open(spec, encoding="utf-8") as file:
                    losses = json.load(file).get("losses", {})
                if not losses:
                    self.assertIn("no gradient to check", self.ok("check", spec))
                    report = json.loads(self.ok("check", spec, "--json"))
                    self.assertEqual((report["passed"], report["losses"]), (True, []))
                    self.assertEqual(report["notes"], ["the spec has no losses: there is no gradient to check"])
                    continue
                report = json.loads(self.ok("check", spec, "--json", "--seed", 5))
                self.assertTrue(report["passed"])
                self.assertEqual({loss["name"] for loss in report["losses"]}, {*losses, "total"})
                self.assertEqual(report["elements"], report["rows"] * report["vocab"])
                self.assertLess(report["vocab"], report["spec_vocab"])
                self.assertTrue(any("vocabulary" in note for note in report["notes"]))
                for loss in report["losses"]:
                    self.assertLessEqual(loss["error"], loss["allowed_error"])
                    self.assertEqual(loss["compared"] + loss["kinks"], report["elements"])

    def test_table_and_rows(self):
        text = self.ok("check", "-", "--rows", 3, stdin=json.dumps(CE_Z))
        self.assertIn("total", text)
        self.assertIn("ok", text)
        self.assertIn("3 rows x 32 tokens", text)
        self.fails(2, "check", "-", "--rows", 0, stdin=json.dumps(CE_Z), says="--rows")

    def test_on_a_batch(self):
        logits, labels, mask = batch((2, 4))
        spec = self.write("spec.json", CE_Z)
        data = self.path("batch.safetensors")
        safetensors_np.save(data, {"logits": logits, "labels": labels, "mask": mask, "grad_scale": np.float32(3)})
        report = json.loads(self.ok("check", spec, "--in", data, "--json"))
        scalars, _, gradient = ce_z_reference(logits, labels, mask)
        found = {loss["name"]: loss for loss in report["losses"]}
        self.assertAlmostEqual(found["ce"]["loss"], scalars["loss.ce"], delta=1e-12)
        self.assertAlmostEqual(found["total"]["loss"], scalars["loss"], delta=1e-12)
        self.assertAlmostEqual(found["total"]["largest_gradient"], 3 * np.abs(gradient).max(), delta=1e-8)
        self.assertEqual((report["rows"], report["vocab"], report["notes"]), (8, VOCAB, []))
        report = json.loads(self.ok("check", spec, "--in", data, "--rows", 3, "--elements", 20, "--json"))
        self.assertEqual((report["rows"], report["elements"]), (3, 20))

        safetensors_np.save(data, {"logits": BFloat16(logits), "mask": mask})
        self.fails(2, "check", spec, "--in", data, says="labels")
        labels[:] = VOCAB
        safetensors_np.save(data, {"logits": BFloat16(logits), "labels": labels})
        result = lossc("check", spec, "--in", data)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("nan", result.stdout)

    def test_segments_from_a_file(self):
        logits, labels, _ = batch((12,))
        random = np.random.default_rng(5)
        losses = {"policy": {"type": "gspo"}, "d": {"type": "distillation"}}
        spec = self.write("gspo.json", {**CE_Z, "losses": losses, "metrics": [], "outputs": []})
        data = self.path("batch.safetensors")
        tensors = {
            "logits": logits,
            "teacher_logits": random.standard_normal(logits.shape).astype(np.float32),
            "labels": labels,
            "old_logprobs": (-3 + random.standard_normal(12)).astype(np.float32),
            "advantages": random.standard_normal(3).astype(np.float32),
            "cu_seqlens": np.array([0, 5, 5, 12], np.int32),
        }
        safetensors_np.save(data, tensors)
        by_offsets = json.loads(self.ok("check", spec, "--in", data, "--json"))
        del tensors["cu_seqlens"]
        tensors["segment_ids"] = np.repeat([0, 2], [5, 7])
        tensors["num_segments"] = np.int32(3)
        safetensors_np.save(data, tensors)
        by_ids = json.loads(self.ok("check", spec, "--in", data, "--json"))
        self.assertEqual(by_offsets, by_ids)

    def test_set(self):
        report = json.loads(self.ok("check", "-", "--json", "--set", "z.weight=0", stdin=json.dumps(CE_Z)))
        found = {loss["name"]: loss for loss in report["losses"]}
        self.assertEqual(found["z"]["largest_gradient"], 0)
        self.assertAlmostEqual(found["total"]["loss"], found["ce"]["loss"], delta=1e-12)
        self.fails(2, "check", "-", "--set", "ce.weight=1", stdin=json.dumps(CE_Z), says="ce.weight")


class Lists(Command):
    def test_losses(self):
        losses = {loss["type"]: loss for loss in json.loads(self.ok("losses", "--json"))}
        self.assertLessEqual(
            {"cross_entropy", "z_loss", "entropy", "distillation", "grpo", "gspo", "dpo"}, set(losses)
        )
        epsilon = {p["name"]: p["default"] for p in losses["gspo"]["parameters"]}
        self.assertEqual(epsilon, {"epsilon_low": 3e-4, "epsilon_high": 4e-4})
        self.assertEqual(losses["dpo"]["reductions"][0], "pair_mean")
        self.assertIn("clip_fraction", losses["grpo"]["metrics"])
        self.assertIsNone(losses["cross_entropy"]["parameters"][0]["default"])
        text = self.ok("losses")
        for name, loss in losses.items():
            self.assertIn(f"{name}: {loss['summary']}", text)
            self.assertIn(" ".join(loss["formula"].split()), " ".join(text.split()))
        self.assertEqual(len(json.loads(self.ok("losses", "gspo", "--json"))), 1)

    def test_markdown(self):
        lines = self.ok("losses", "--markdown").strip().splitlines()
        columns = {line.replace("\\|", "").count("|") for line in lines}
        self.assertEqual(len(columns), 1)
        self.assertEqual(len(lines), 2 + len(json.loads(self.ok("losses", "--json"))))

    def test_schema(self):
        schema = json.loads(self.ok("schema"))
        self.assertIn("2020-12", schema["$schema"])

    def test_doctor(self):
        found = json.loads(self.ok("doctor", "--json"))
        self.assertEqual(self.ok("--version").split()[1], found["build"]["version"])
        self.assertEqual(found["build"]["cuda_backend"], found["nvidia"]["headers"] is not None)
        self.assertGreaterEqual(found["threads"]["used"], 1)
        for library in ["driver", "nvrtc"]:
            state = found["nvidia"][library]
            self.assertIn("tried", state)
            if not state["found"]:
                self.assertTrue(state["problem"])
        if found["nvidia"]["nvrtc"]["found"]:
            self.assertIn(90, found["nvidia"]["nvrtc"]["archs"])
            self.assertTrue(found["nvidia"]["nvrtc"]["build_id"])
        self.assertIn("avx2" if os.uname().machine == "x86_64" else "features", json.dumps(found["cpu"]))
        text = self.ok("doctor")
        for word in ["CPU backend", "CUDA backend", "threads", "kernel cache", "NVRTC"]:
            self.assertIn(word, text)
        environment = dict(os.environ, LOSSC_CACHE_DIR=self.path("cache"), LOSSC_NUM_THREADS="1")
        command = [LOSSC, "doctor", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found = json.loads(result.stdout)
        self.assertEqual(found["cache"]["path"], self.path("cache"))
        self.assertEqual(found["cache"]["state"], "does not exist yet")
        self.assertEqual(found["threads"]["used"], 1)

    def test_doctor_names_what_it_tried(self):
        if not DOCTOR["build"]["cuda_backend"]:
            self.skipTest("a build without the CUDA backend")
        missing = self.path("none.so")
        environment = dict(os.environ, LOSSC_NVRTC=missing, LOSSC_LIBCUDA=missing)
        for arguments in [["doctor"], ["doctor", "--json"]]:
            result = subprocess.run([LOSSC, *arguments], capture_output=True, text=True, env=environment, check=True)
            self.assertGreaterEqual(result.stdout.count(missing), 2)
            for word in ["LOSSC_NVRTC", "LOSSC_LIBCUDA", "nvidia-cuda-nvrtc", "NVIDIA driver"]:
                self.assertIn(word, result.stdout)


class Streams(Command):
    def test_a_full_device_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([LOSSC, "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("lossc: cannot write", result.stderr)

    def test_no_bar_where_nobody_looks(self):
        result = lossc("check", os.path.join(SPECS, "gspo_distill.json"))
        self.assertEqual(result.stderr, "")


if __name__ == "__main__":
    LOSSC = os.path.abspath(sys.argv.pop(1))
    DOCTOR = json.loads(subprocess.run([LOSSC, "doctor", "--json"], capture_output=True, check=True).stdout)
    HAS_CPU = DOCTOR["build"]["llvm"] is not None
    DEVICE = "cpu" if HAS_CPU else "interpreter"
    unittest.main(verbosity=1)
