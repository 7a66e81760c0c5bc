"""Build the native core: one limited-API extension, chosen instructions at run time.

Everything else is in pyproject.toml. ``optional=True``: where no C++ compiler is, the
install goes on and ckptflow uses numba, or NumPy; the digests are the same bits.
"""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = "ckptflow/native"
PARTS = ["capture", "diff", "digest", "filters", "galois", "levels", "memory", "ranges"]
SOURCES = ["module.cpp", *(f"py_{part}.cpp" for part in PARTS)]

setup(
    ext_modules=[
        Extension(
            "ckptflow.native._core",
            [f"{NATIVE}/{name}" for name in SOURCES],
            depends=sorted(str(path) for path in Path(NATIVE).glob("*.[hi]*")),
            include_dirs=[NATIVE],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-O3", "-std=c++17", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
