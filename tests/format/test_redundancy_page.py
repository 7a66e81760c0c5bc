"""Stripes are as the section "Redundancy" of the format page says.

A reader written from that page alone: it lists keys, reads descriptors, and decodes with
arithmetic on polynomials, slowly. It uses nothing of the product.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re

import pytest
from nodes import BLOCK, Nodes

from ckptflow.store.redundancy.scheme import Scheme


def times(a: int, b: int) -> int:
    product = 0
    for bit in range(8):
        product ^= (a << bit) * (b >> bit & 1)
    for bit in range(14, 7, -1):
        product ^= (0x11D << (bit - 8)) * (product >> bit & 1)
    return product


PRODUCTS = [[times(a, b) for b in range(256)] for a in range(256)]
INVERSE = [0] + [PRODUCTS[a].index(1) for a in range(1, 256)]
Matrix = list[list[int]]


def product_of(a: Matrix, b: Matrix) -> Matrix:
    result = [[0] * len(b[0]) for _ in a]
    for i, j, c in itertools.product(range(len(a)), range(len(b[0])), range(len(b))):
        result[i][j] ^= PRODUCTS[a[i][c]][b[c][j]]
    return result


def inverse_of(matrix: Matrix) -> Matrix:
    size = len(matrix)
    work = [[*row, *(int(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(row for row in range(column, size) if work[row][column])
        work[column], work[pivot] = work[pivot], work[column]
        scale = INVERSE[work[column][column]]
        work[column] = [PRODUCTS[scale][x] for x in work[column]]
        for row in range(size):
            factor = work[row][column] if row != column else 0
            work[row] = [
                x ^ PRODUCTS[factor][y] for x, y in zip(work[row], work[column], strict=True)
            ]
    return [row[size:] for row in work]


def parity_matrix(k: int, m: int) -> Matrix:
    if m == 1:
        return [[1] * k]
    powers = []
    for r in range(k + m):
        row = [1]
        for _ in range(k - 1):
            row.append(PRODUCTS[row[-1]][r])
        powers.append(row)
    return product_of(powers[k:], inverse_of(powers[:k]))


def seal(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def descriptor(data: bytes) -> dict:
    line, sealed, rest = data.split(b"\n")
    assert (sealed.decode(), rest) == (seal(line), b"")
    document = json.loads(line.decode("ascii"))
    assert (document["format"], document["version"]) == ("ckptflow-stripe", 1)
    return document


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(name="partner", set_size=3),
        Scheme(name="xor", set_size=4),
        Scheme(name="rs", set_size=5, losses=2),
    ],
    ids=lambda scheme: scheme.name,
)
def test_a_reader_written_from_the_page_decodes_every_stripe(scheme: Scheme) -> None:
    nodes = Nodes(scheme.set_size)
    nodes.save(1)
    nodes.protect(scheme)
    stores = {
        json.loads(tier.get("ckptflow-store.json"))["store"]: tier for tier in nodes.tiers
    }
    found = {}
    for tier in nodes.tiers:
        for key in tier.iter_keys("redundancy"):
            match = re.fullmatch(
                r"redundancy/([0-9a-f]{32})/(stripe\.json|\d{3}\.\d{5}\.parity)", key
            )
            assert match, key
            if match[2] == "stripe.json":
                document = descriptor(tier.get(key))
                assert document["stripe"] == match[1]
                assert found.setdefault(match[1], document) == document
    assert found
    for stripe in found.values():
        check(stripe, stores)


def check(stripe: dict, stores: dict) -> None:
    data, parity, block = stripe["data"], stripe["parity"], stripe["block"]
    k, m = len(data), len(parity)
    assert block == BLOCK
    assert len({one["member"] for one in data + parity}) == k + m
    length = max(one["bytes"] for one in data)
    pieces = []
    for one in data:
        value = stores[one["member"]].get(one["key"])
        assert (len(value), seal(value)) == (one["bytes"], one["seal"])
        pieces.append(value + bytes(length - len(value)))
    for number, one in enumerate(parity):
        blocks = [
            stores[one["member"]].get(
                f"redundancy/{stripe['stripe']}/{k + number:03d}.{place:05d}.parity"
            )
            for place in range(-(-length // block))
        ]
        assert [seal(value) for value in blocks] == one["seals"]
        assert all(len(value) == block for value in blocks[:-1])
        pieces.append(b"".join(blocks))
    whole = [[int(i == j) for j in range(k)] for i in range(k)] + parity_matrix(k, m)
    for have in itertools.combinations(range(k + m), k):
        decoding = inverse_of([whole[number] for number in have])
        for place in range(0, length, 7):  # Some bytes of each; every one takes long.
            column = [[pieces[number][place]] for number in have]
            assert [row[0] for row in product_of(decoding, column)] == [
                piece[place] for piece in pieces[:k]
            ]
