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
if ".extern .global" in kernels or ".extern .func" in kernels:
    sys.exit("something is still unresolved")
open(sys.argv[3], "w").write(kernels)
