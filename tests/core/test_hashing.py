"""Digests without OpenSSL are those of hashlib."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from hetero_core import hashing


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 1 << 20])
def test_digests_are_those_of_hashlib(size: int) -> None:
    content = bytes(index * 7 % 251 for index in range(size))
    assert hashing.sha256(content).digest() == hashlib.sha256(content).digest()
    assert hashing.blake2b(content).digest() == hashlib.blake2b(content).digest()


def test_package_is_imported_without_openssl_and_paths() -> None:
    code = "import sys, numpy; before = set(sys.modules); from hetero_core import Core; print(*sorted(set(sys.modules) - before))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True).stdout.split()
    assert "hetero_core.core" in modules
    assert not {"_hashlib", "pathlib", "json", "subprocess", "concurrent.futures"} & set(modules)
