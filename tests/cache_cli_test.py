"""The kernel cache through the command: processes, damage, folders, and the verbs of `lossc cache`.

Usage: cache_cli_test.py LOSSC [unittest arguments]
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import SPECS, Command, ce_z_reference

np = cli_test.np
CE_Z = os.path.join(SPECS, "ce_z.json")
GSPO = os.path.join(SPECS, "gspo_z_ce.json")


def read(path):
    with open(path, "rb") as file:
        return file.read()


class CacheCommand(Command):
    """Every test has a folder of its own."""

    def setUp(self):
        super().setUp()
        self.cache = self.path("cache")
        saved = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(saved)))
        os.environ["LOSSC_CACHE_DIR"] = self.cache
        for name in ["LOSSC_NO_COMPILE", "LOSSC_CACHE_READONLY_DIR", "LOSSC_CACHE_MAX_SIZE", "LOSSC_NO_CACHE"]:
            os.environ.pop(name, None)

    def compile(self, spec=CE_Z, **keywords):
        return self.ok("plan", spec, "--source", **keywords)

    def json(self, *arguments):
        return json.loads(self.ok("cache", *arguments, "--json"))

    def totals(self):
        return self.json("stats")["totals"]

    def entries(self):
        return self.json("list")


class Processes(CacheCommand):
    def test_sixteen_processes_compile_once_and_are_right(self):
        logits, labels, mask = cli_test.batch((5, 7))
        batch = self.path("batch.safetensors")
        cli_test.safetensors_np.save(batch, {"logits": logits, "labels": labels, "mask": mask})
        spec = self.write("spec.json", cli_test.CE_Z)
        command = [cli_test.LOSSC, "run", spec, "--in", batch, "--out"]
        processes = [
            subprocess.Popen([*command, self.path(f"{i}.safetensors")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for i in range(16)
        ]
        for process in processes:
            self.assertEqual((process.communicate(timeout=120)[1], process.returncode), (b"", 0))
        scalars = ce_z_reference(logits, labels, mask)[0]
        for i in range(16):
            result = cli_test.safetensors_np.load(self.path(f"{i}.safetensors"))
            self.assertAlmostEqual(float(result["loss"]), scalars["loss"], places=4)
        totals = self.totals()
        self.assertEqual((totals["compilations"], totals["writes"], totals["damaged"]), (1, 1, 0))
        self.assertEqual(totals["disk_hits"], 15)

    def test_killed_at_any_moment(self):
        moments = random.Random(5)
        for _ in range(15):
            process = subprocess.Popen([cli_test.LOSSC, "plan", CE_Z, "--source"], stdout=subprocess.DEVNULL)
            time.sleep(moments.random() * 0.15)
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.compile()
            self.assertEqual(self.json("verify")["damaged"], [])
            self.ok("cache", "clear")


class Folders(CacheCommand):
    def warns_once(self, says, environment=None):
        result = subprocess.run(
            [cli_test.LOSSC, "plan", CE_Z, "--source"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(environment or {})},
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("lossc: warning: kernel cache: "), result.stderr)
        self.assertIn(says, result.stderr)

    def test_full_disk(self):
        os.mkdir(self.cache)
        mount = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8k,mode=0700", "lossc-test", self.cache], capture_output=True, check=False
        )
        if mount.returncode != 0:
            self.skipTest("may not mount a tmpfs")
        try:
            self.warns_once("No space left on device")
            self.assertEqual([e for e in self.entries() if "unreadable" in e], [])
        finally:
            subprocess.run(["umount", self.cache], check=True)

    def test_untrusted_folders(self):
        os.mkdir(self.cache)
        os.chmod(self.cache, 0o777)
        self.warns_once("written to by others")
        self.fails(1, "cache", "list", says="written to by others")
        os.rmdir(self.cache)
        os.mkdir(self.path("real"))
        os.symlink(self.path("real"), self.cache)
        self.warns_once("symbolic link")
        self.assertEqual(os.listdir(self.path("real")), [])
        self.assertEqual(json.loads(self.ok("doctor", "--json"))["cache"]["state"].split(";")[0], "is a symbolic link")

    def test_home_unset(self):
        for name in ["LOSSC_CACHE_DIR", "XDG_CACHE_HOME", "HOME"]:
            os.environ.pop(name, None)
        os.environ["LOSSC_NO_CACHE"] = "1"
        self.compile()
        self.fails(2, "cache", "path", says="LOSSC_NO_CACHE")

    def test_second_folder_and_no_compile(self):
        self.compile()
        os.environ["LOSSC_CACHE_READONLY_DIR"] = self.cache
        os.environ["LOSSC_CACHE_DIR"] = self.path("own")
        os.environ["LOSSC_NO_COMPILE"] = "1"
        self.compile()
        self.fails(1, "plan", GSPO, "--source", says=["LOSSC_NO_COMPILE", "lossc cache import"])
        self.assertFalse(os.path.exists(self.path("own")))
        self.assertEqual([e["readonly"] for e in self.entries()], [True])


class Damage(CacheCommand):
    def test_healing(self):
        self.compile()
        source = self.compile(GSPO)
        first, second = (e["path"] for e in self.entries())
        good = read(first)
        flipped = bytearray(good)
        flipped[len(good) // 3] ^= 1
        for content in [good[:-1], good[: len(good) // 2], b"", bytes(flipped), read(second)]:
            with open(first, "wb") as file:
                file.write(content)
            self.fails_verify(first)
            for spec in [CE_Z, GSPO]:
                self.compile(spec, warnings=True)
            self.assertEqual(self.json("verify")["damaged"], [])
        self.assertEqual(self.totals()["damaged"], 5)
        self.assertEqual(self.totals()["compilations"], 7)
        self.assertEqual(self.compile(GSPO), source)

    def fails_verify(self, path):
        result = cli_test.lossc("cache", "verify", "--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual([e["path"] for e in json.loads(result.stdout)["damaged"]], [path])


class Verbs(CacheCommand):
    VERBS = ["path", "stats", "list", "show", "extract", "verify", "why", "prune", "clear", "export", "import"]

    def test_usage(self):
        text = self.ok("cache", "--help")
        for verb in self.VERBS:
            self.assertIn(verb, text)
            self.assertIn(f"Usage: lossc cache {verb}", self.ok("cache", verb, "--help"))
        self.fails(2, "cache", says="lossc cache --help")
        self.fails(2, "cache", "show", says="lossc cache show --help")
        self.fails(2, "cache", "prune", says="--max-size")
        self.fails(2, "cache", "prune", "--older-than", "1y", says="30d")
        self.fails(2, "cache", "prune", "--max-size", "many", says="512M")
        self.fails(1, "cache", "import", self.path("none"), says="none")

    def test_empty_folder(self):
        self.assertEqual(self.ok("cache", "path"), self.cache + "\n")
        self.assertEqual(self.ok("cache", "list"), "no entries\n")
        self.assertEqual(self.entries(), [])
        self.assertEqual(self.json("stats")["folders"][0]["entries"], 0)
        self.assertEqual(self.json("verify"), {"entries": 0, "damaged": []})
        self.ok("cache", "clear")
        self.assertFalse(os.path.exists(self.cache))
        self.assertIsNone(self.json("why", CE_Z)["entry"])

    def test_list_show_extract(self):
        self.compile()
        self.compile(GSPO)
        entries = self.entries()
        self.assertEqual(len(entries), 2)
        self.assertIn("cross_entropy + z_loss", self.ok("cache", "list", "--sort", "size"))
        key = json.loads(self.ok("plan", CE_Z, "--json"))["key"]
        self.assertIn(key, [e["key"] for e in entries])
        shown = self.json("show", key[:10])
        self.assertEqual((shown["key"], shown["kind"]), (key, "llvm-object"))
        self.assertIn("features", shown["fields"])
        self.assertEqual(self.json("show", shown["path"])["key"], key)
        self.assertIn("checksum       good", self.ok("cache", "show", key[:10]))
        out = self.path("rows.o")
        self.ok("cache", "extract", key[:10], "rows.o", "--out", out)
        self.assertEqual(read(out)[:4], b"\x7fELF")
        self.assertIn("[plan]\nvocab 131072", self.ok("cache", "extract", key, "key"))
        self.fails(2, "cache", "extract", key, "rows.obj", says='did you mean "rows.o"')
        self.fails(2, "cache", "show", "zz", says="no entry")
        self.fails(2, "cache", "show", "", says="no entry")

    def test_why(self):
        self.compile()
        why = self.json("why", CE_Z)
        self.assertTrue(why["cached"])
        self.assertEqual({f["verdict"] for f in why["fields"]}, {"same"})
        why = self.json("why", GSPO)
        self.assertFalse(why["cached"])
        self.assertEqual(why["first_difference"]["field"], "plan")
        self.assertIn("first difference: plan, line", self.ok("cache", "why", GSPO))
        other = json.loads(read(CE_Z))
        other["logits"]["vocab"] = 7
        name = self.write("other.json", other)
        first = self.json("why", name, "--key", why["entry"]["key"][:12])["first_difference"]
        self.assertEqual((first["line"], first["here"], first["entry"]), (1, "vocab 7", "vocab 131072"))
        self.fails(1, "cache", "why", CE_Z, "--device", "tpu", says="cpu")

    def test_prune_and_clear(self):
        self.compile()
        self.compile(GSPO)
        old = self.entries()[0]
        os.utime(old["path"], (time.time() - 40 * 86400,) * 2)
        self.assertEqual(self.json("prune", "--older-than", "30d", "--dry-run")["keys"], [old["key"]])
        self.assertEqual(len(self.entries()), 2)
        self.assertEqual(self.json("prune", "--older-than", "30d")["entries"], 1)
        self.assertEqual(self.json("prune", "--target", "no_such_cpu")["entries"], 0)
        self.assertEqual(self.json("prune", "--max-size", "0")["entries"], 1)
        self.compile()
        self.assertIn("removed 1 entries", self.ok("cache", "clear"))
        self.assertEqual(self.entries(), [])

    def test_export_and_import(self):
        self.compile()
        self.compile(GSPO)
        pack = self.path("kernels.tar")
        self.assertIn("exported 2 entries", self.ok("cache", "export", pack))
        os.environ["LOSSC_CACHE_DIR"] = self.path("other")
        self.assertIn("imported 2 entries; 0 were", self.ok("cache", "import", pack))
        self.assertIn("imported 0 entries; 2 were", self.ok("cache", "import", pack))
        os.environ["LOSSC_NO_COMPILE"] = "1"
        self.compile()
        self.compile(GSPO)
        content = read(pack)
        with open(pack, "wb") as file:
            file.write(content[: len(content) // 2])
        self.fails(1, "cache", "import", pack, says="ends too early")

    def test_size_bound(self):
        self.compile()
        self.compile(GSPO)
        sizes = [entry["bytes"] for entry in self.entries()]
        self.ok("cache", "clear")
        os.environ["LOSSC_CACHE_MAX_SIZE"] = str(sum(sizes) - 1)  # room for either, not for both
        self.compile()
        os.utime(self.entries()[0]["path"], (1, 1))
        self.compile(GSPO)
        self.assertEqual(len(self.entries()), 1)
        self.assertEqual(self.totals()["evictions"], 1)
        os.environ["LOSSC_CACHE_MAX_SIZE"] = "large"
        self.fails(2, "cache", "list", says="LOSSC_CACHE_MAX_SIZE")


if __name__ == "__main__":
    cli_test.LOSSC = os.path.abspath(sys.argv.pop(1))
    doctor = json.loads(subprocess.run([cli_test.LOSSC, "doctor", "--json"], capture_output=True, check=True).stdout)
    if doctor["build"]["llvm"] is None:
        for case in [Processes, Folders, Damage]:
            case.setUp = lambda self: self.skipTest("this build has no CPU backend")
        for name in ["list_show_extract", "why", "prune_and_clear", "export_and_import", "size_bound"]:
            delattr(Verbs, "test_" + name)
    unittest.main(verbosity=1)
