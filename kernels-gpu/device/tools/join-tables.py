"""Puts the formats crate's tables into the kernels' PTX: rustc emits one text a crate and nothing here links them.

    join-tables.py KERNELS.ptx FORMATS.ptx OUT.ptx
"""
import re
import sys

kernels, formats = open(sys.argv[1]).read(), open(sys.argv[2]).read()
definition = r"^\.(?:visible|weak) \.global [^\n]*?\b(\w+)(?:\[[^\]]*\])? = [^;]*;"
tables = {found.group(1): found.group(0) for found in re.finditer(definition, formats, re.M | re.S)}
declared = r"^\.extern \.global [^\n]*?\b(\w+)(?:\[[^\]]*\])?;"
kernels = re.sub(declared, lambda found: tables[found.group(1)], kernels, flags=re.M)
# What rustc cannot say: threads of a block, and blocks of a Hopper multiprocessor that registers must leave room for.
for name in ["flash_64", "flash_80", "flash_96", "flash_128"] if ".target sm_90" in kernels else []:
    entry = rf"(\.entry {name}\([^)]*\)\s*)\{{"
    kernels, found = re.subn(entry, r"\1.maxntid 128, 1, 1\n.minnctapersm 3\n{", kernels)
    if found != 1:
        sys.exit(f"no entry {name}")
if ".extern .global" in kernels or ".extern .func" in kernels:
    sys.exit("something is still unresolved")
open(sys.argv[3], "w").write(kernels)
