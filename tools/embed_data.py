#!/usr/bin/env python3
"""Writes a C++ file with the text of data files, so that a program needs no files beside it.

usage: embed_data.py OUT SYMBOL FILE...

Defines `extern const dbo::DataFile dbo::SYMBOL[]` and `dbo::SYMBOL_count`; a file's name is its stem, in the order given.
The text is not parsed here: a data file costs its reader time only when it is asked for.
"""
import json
import pathlib
import sys

DELIMITER = "data"


def main() -> int:
    out, symbol, *files = sys.argv[1:]
    # A profile is longer than the text that every compiler has to take; those that build this take it.
    lines = ['#include "sim/base/data_file.h"', "", '#pragma GCC diagnostic ignored "-Woverlength-strings"', "",
             "namespace dbo {", "",
             f"extern const DataFile {symbol}[];", f"extern const unsigned {symbol}_count;", "",
             f"const DataFile {symbol}[] = {{"]
    for file in files:
        text = pathlib.Path(file).read_text(encoding="utf-8")
        if file.endswith(".json"):
            json.loads(text)  # a broken file should stop the build, not a user's run
        if f"){DELIMITER}\"" in text:
            sys.exit(f"{file}: holds the delimiter )" + DELIMITER + '"')
        lines.append(f'    {{"{pathlib.Path(file).stem}", R"{DELIMITER}({text}){DELIMITER}"}},')
    lines += ["};", "", f"const unsigned {symbol}_count = {len(files)};", "", "}  // namespace dbo", ""]
    pathlib.Path(out).write_text("\n".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
