"""Kernels through the command without a GPU: `lossc compile`, the source of a GPU's kernels.

Usage: compile_cli_test.py LOSSC [unittest arguments]
"""

import json
import os
import subprocess
import sys
import unittest

import cache_cli_test
import cli_test
from cli_test import SPECS

CE_Z = os.path.join(SPECS, "ce_z.json")
GSPO = os.path.join(SPECS, "gspo_z_ce.json")
DOCTOR = {}


def needs_nvrtc(test):
    def run(self):
        if not DOCTOR["nvidia"]["nvrtc"]["found"]:
            self.skipTest("NVRTC was not found")
        test(self)

    return run


def needs_cpu(test):
    def run(self):
        if DOCTOR["build"]["llvm"] is None:
            self.skipTest("this build has no CPU backend")
        test(self)

    return run


class Compile(cache_cli_test.CacheCommand):
    def compiled(self, *arguments):
        return json.loads(self.ok("compile", *arguments, "--json"))["entries"]

    @needs_nvrtc
    def test_entries_have_the_keys_that_cards_ask_for(self):
        out = self.path("out")
        entries = self.compiled(CE_Z, GSPO, "--arch", "sm_80,sm_90", "--out", out)
        self.assertEqual([e["arch"] for e in entries], ["sm_80"] * 3 + ["sm_90a"] * 3)
        self.assertTrue(all(e["compiled"] for e in entries))
        self.assertEqual([e["spec"] for e in entries[:3]], [CE_Z, GSPO, None])  # None: segments
        for entry in entries:
            self.assertEqual(entry["kind"], "cubin")
            self.assertGreater(len(entry["kernels"]), 0)
            for kernel in entry["kernels"]:
                self.assertGreater(kernel["registers"], 0)
        os.environ["LOSSC_CACHE_READONLY_DIR"] = out
        for spec, entry in [(CE_Z, entries[3]), (GSPO, entries[4])]:
            why = json.loads(self.ok("cache", "why", spec, "--device", "cuda:sm_90a", "--json"))
            self.assertEqual(why["key"], entry["key"])
            self.assertTrue(why["cached"])
        self.assertEqual(len(os.listdir(out)) > 0, True)
        self.assertFalse(os.path.exists(self.cache))

    @needs_nvrtc
    def test_what_is_there_is_not_compiled_again(self):
        self.assertTrue(self.compiled(CE_Z, "--arch", "sm_80")[0]["compiled"])
        os.environ["LOSSC_NO_COMPILE"] = "1"
        self.assertFalse(self.compiled(CE_Z, "--arch", "sm_80")[0]["compiled"])
        result = cli_test.lossc("compile", GSPO, "--arch", "sm_80")
        self.assertEqual(result.returncode, 1)
        self.assertIn("LOSSC_NO_COMPILE", result.stderr)
        self.assertEqual([e["target"] for e in self.json("list")], ["sm_80"])

    @needs_nvrtc
    def test_table(self):
        text = self.ok("compile", GSPO, "--arch", "sm_80")
        for word in ["ARCH", "REGISTERS", "SPILLS", "STACK", "region0", "region1", "batch_scan", "2 compiled"]:
            self.assertIn(word, text)

    @needs_nvrtc
    def test_unknown_architectures(self):
        for name in ["sm_999", "sm_90f", "h100", "cuda"]:
            self.fails(2, "compile", CE_Z, "--arch", name, says=[f'"{name}"', "sm_80", "sm_90a", "cpu"])
        self.assertFalse(os.path.exists(self.cache))

    @needs_cpu
    def test_the_cpu(self):
        out = self.path("out")
        entry = self.compiled(CE_Z, "--arch", "cpu", "--out", out)[0]
        self.assertEqual((entry["kind"], entry["compiled"]), ("llvm-object", True))
        os.environ.update(LOSSC_CACHE_READONLY_DIR=out, LOSSC_NO_COMPILE="1")
        logits, labels, mask = cli_test.batch((5, 7))
        spec = self.write("spec.json", cli_test.CE_Z)
        batch = self.path("batch.safetensors")
        cli_test.safetensors_np.save(batch, {"logits": logits, "labels": labels, "mask": mask})
        self.fails(1, "run", spec, "--in", batch, says="LOSSC_NO_COMPILE")
        del os.environ["LOSSC_NO_COMPILE"]
        self.compiled(spec, "--arch", "cpu", "--out", out)
        os.environ["LOSSC_NO_COMPILE"] = "1"
        self.ok("run", spec, "--in", batch)

    def test_wrong_usage(self):
        self.fails(2, "compile", CE_Z, says="--arch")
        self.fails(2, "compile", "--arch", "cpu")
        self.fails(2, "compile", self.write("wrong.json", "{"), "--arch", "sm_80" if DOCTOR["nvidia"]["nvrtc"]["found"] else "cpu")

    @needs_cpu
    def test_a_folder_that_cannot_be_written_is_a_failure(self):
        file = self.write("file", "")
        result = cli_test.lossc("compile", CE_Z, "--arch", "cpu", "--out", file)
        self.assertEqual(result.returncode, 1)
        self.assertIn(file, result.stderr)


class Source(cache_cli_test.CacheCommand):
    def test_cuda(self):
        if not DOCTOR["build"]["cuda_backend"]:
            self.fails(1, "plan", GSPO, "--source", "--device", "cuda:sm_90a", says="no CUDA backend")
            return
        source = self.ok("plan", GSPO, "--source", "--device", "cuda:sm_90a")
        self.assertIn("__global__", source)
        self.assertIn("region1", source)
        # What stands in front of it ties its names to the spec's.
        for known in ("tensors", "parameter(0)", "results[0]     loss", "policy.epsilon_low", "old_logprobs", "labels"):
            self.assertIn(known, source[:source.index("namespace")])
        self.assertEqual(source, self.ok("plan", GSPO, "--source", "--device", "cuda"))
        self.fails(2, "plan", GSPO, "--source", "--device", "cuda:h100", says="sm_90a")
        self.fails(2, "plan", GSPO, "--source", "--device", "cuda:sm_x", says="sm_90a")
        self.assertFalse(os.path.exists(self.cache))


class Bench(cache_cli_test.CacheCommand):
    def setUp(self):
        super().setUp()
        os.environ["LOSSC_NUM_THREADS"] = "1"  # threads that wait for each other are slow where others run, too

    @needs_cpu
    def test_the_cpu(self):
        losses = {"p": {"type": "gspo", "epsilon_low": 0.2}, "z": {"type": "z_loss"}}
        spec = self.write("spec.json", dict(cli_test.CE_Z, losses=losses, outputs=["logprobs"]))
        found = json.loads(self.ok("bench", spec, "--rows", 300, "--repeats", 3, "--segments", 7, "--json"))
        self.assertEqual((found["rows"], found["segments"], found["passes"]), (300, 7, 3))
        self.assertEqual(found["bytes"], 3 * 300 * cli_test.VOCAB * 4)
        self.assertEqual(found["compilations_while_running"], 0)
        for name in ["milliseconds", "copy", "read", "jit"]:
            self.assertIn(name, found)
        self.assertGreater(found["milliseconds"]["median"], 0)
        self.assertGreater(found["fraction_of_copy"], 0)
        self.assertIn("passes", self.ok("bench", spec, "--rows", 20, "--repeats", 1, "--set", "p.epsilon_low=0.1"))

    @needs_cpu
    def test_every_spec(self):
        for name in sorted(os.listdir(SPECS)):
            with self.subTest(name), open(os.path.join(SPECS, name), encoding="utf-8") as file:
                small = json.load(file)
                small["logits"]["vocab"] = 100
                found = json.loads(
                    self.ok("bench", self.write(name, small), "--rows", 40, "--repeats", 1, "--json")
                )
                self.assertGreater(found["gb_per_s"], 0)

    def test_wrong_usage(self):
        self.fails(2, "bench", CE_Z, says="--rows")
        self.fails(2, "bench", CE_Z, "--rows", 0)
        self.fails(2, "bench", CE_Z, "--rows", 5, "--device", "interpreter", says="cuda:N")
        self.fails(1, "bench", CE_Z, "--rows", 5, "--device", "tpu", says="tpu")


if __name__ == "__main__":
    cli_test.LOSSC = os.path.abspath(sys.argv.pop(1))
    DOCTOR = json.loads(subprocess.run([cli_test.LOSSC, "doctor", "--json"], capture_output=True, check=True).stdout)
    unittest.main(verbosity=1)
