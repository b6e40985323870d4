#!/usr/bin/env python3
"""Counts code lines of the Rust and Python sources under crates/, per room, for one or two git revisions.

    bench/size.py REV [REV]

A code line is a line that is neither blank nor only a comment or a docstring. Tests are not counted: folders named
`tests`, files named `tests.rs`, `test_*.py` and `conftest.py`, modules and items under `#[cfg(test)]`, and files that
belong to such a module. With two revisions the third column is the second minus the first.
"""

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import PurePosixPath

TEST_ITEM = re.compile(r"#\[cfg\((all\()?test\b")
# A module of its own file: `mod name;`.
OUTER_MODULE = re.compile(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
RAW_STRING = re.compile(r'\bb?r(#*)"')
CHAR = re.compile(r"b?'(?:[^'\\]|\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.))'")


def git(*words):
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def sources(revision):
    """The paths and texts of the Rust and Python files under crates/."""
    paths = git("ls-tree", "-r", "--name-only", revision, "crates").split("\n")
    paths = [path for path in paths if path.endswith((".rs", ".py")) and not is_test_path(path)]
    names = "".join(f"{revision}:{path}\n" for path in paths).encode()
    command = ["git", "cat-file", "--batch"]
    out = io.BytesIO(subprocess.run(command, input=names, check=True, capture_output=True).stdout)
    for path in paths:
        length = int(out.readline().split()[2])
        text = out.read(length).decode()
        out.read(1)
        yield path, text


def is_test_path(path):
    *folders, name = PurePosixPath(path).parts
    is_test_name = name in ("tests.rs", "conftest.py") or name.startswith("test_")
    return "tests" in folders or is_test_name


def rust_lines(text):
    """The code of each line, without comments, strings replaced by `""`."""
    code, at, depth = [], 0, 0
    while at < len(text):
        if depth:
            mark = text[at : at + 2]
            if mark in ("/*", "*/"):
                depth += 1 if mark == "/*" else -1
                at += 2
            else:
                code.append("\n" if text[at] == "\n" else "")
                at += 1
            continue
        if text.startswith("//", at):
            at = text.find("\n", at)
            if at < 0:
                break
        elif text.startswith("/*", at):
            depth, at = 1, at + 2
        elif (raw := RAW_STRING.match(text, at)) and not (text[at - 1].isalnum() or text[at - 1] == "_"):
            end = text.find('"' + raw.group(1), raw.end())
            code.append('""' + filler(text[at:end]))
            at = end + 1 + len(raw.group(1))
        elif text[at] == '"':
            end = at + 1
            while text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            code.append('""' + filler(text[at:end]))
            at = end + 1
        elif character := CHAR.match(text, at):
            code.append("' '")
            at = character.end()
        else:
            code.append(text[at])
            at += 1
    return "".join(code).split("\n")


def filler(string):
    """A string's further lines count as code, unless they are blank."""
    return "".join("\n" + ('""' if line.strip() else "") for line in string.split("\n")[1:])


def rust_code(text):
    """The number of code lines outside tests, and the names of modules that are tests."""
    lines, counted, tests = rust_lines(text), 0, []
    number = 0
    while number < len(lines):
        if TEST_ITEM.match(lines[number].strip()):
            end = item_end(lines, number)
            item = " ".join(lines[number:end])
            module = OUTER_MODULE.search(re.sub(r"#\[[^\]]*\]", "", item))
            tests += [module.group(1)] if module else []
            number = end
            continue
        counted += bool(lines[number].strip())
        number += 1
    return counted, tests


def item_end(lines, number):
    """The line after an item that begins with attributes: its closing brace, or its semicolon outside braces."""
    depth, began = 0, False
    while number < len(lines):
        line = lines[number]
        if not began and re.fullmatch(r"\s*#!?\[.*\]\s*|\s*", line):
            number += 1
            continue
        began = True
        for letter in line:
            depth += (letter in "{([") - (letter in "})]")
            if depth == 0 and letter in "};":
                return number + 1
        # A field or a variant ends with a comma.
        if depth == 0 and line.rstrip().endswith(","):
            return number + 1
        number += 1
    return number


def python_code(text):
    """The number of lines that have a token other than a comment or a docstring."""
    lines, begins = set(), True
    blank = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or token.type == tokenize.NL:
            continue
        if token.type in blank:
            begins = True
            continue
        is_docstring = begins and token.type == tokenize.STRING and token.line.strip().startswith(('"""', 'r"""'))
        begins = False
        if not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def rooms(revision):
    """Code lines per room: `wing/crate`, Python apart."""
    counts, tests = {}, set()
    for path, text in sources(revision):
        if path.endswith(".py"):
            counts[path] = python_code(text)
            continue
        counts[path], modules = rust_code(text)
        file = PurePosixPath(path)
        is_root = file.name in ("lib.rs", "main.rs", "mod.rs")
        folder = file.parent if is_root else file.with_suffix("")
        tests.update(str(folder / module) for module in modules)
    totals = Counter()
    for path, count in counts.items():
        parents = [str(PurePosixPath(path).with_suffix("")), *map(str, PurePosixPath(path).parents)]
        if not tests.isdisjoint(parents):
            continue
        wing, room = PurePosixPath(path).parts[1:3]
        totals[f"{wing}/{room}" + (" (Python)" if path.endswith(".py") else "")] += count
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("revision", nargs="+", metavar="REV", help="one or two git revisions")
    revisions = parser.parse_args().revision
    if len(revisions) > 2:
        parser.error("expected one or two revisions")
    found = [rooms(revision) for revision in revisions]
    for name in [*sorted(set().union(*found)), "total"]:
        row = [each.total() if name == "total" else each[name] for each in found]
        row += [row[1] - row[0]] if len(row) == 2 else []
        signs = [f"{count:>9,}" for count in row[:2]] + [f"{count:>+9,}" for count in row[2:]]
        print(f"{name:<24}" + "".join(signs))


if __name__ == "__main__":
    sys.exit(main())
