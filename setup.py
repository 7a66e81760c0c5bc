"""Build the native core: one limited-API extension, chosen instructions at run time.

Everything else is in pyproject.toml. ``optional=True``: where no C++ compiler is, the
install goes on and ckptflow uses numba, or NumPy; the digests are the same bits.
"""

from setuptools import Extension, setup

NATIVE = "ckptflow/native"

setup(
    ext_modules=[
        Extension(
            "ckptflow.native._core",
            [f"{NATIVE}/module.cpp"],
            depends=[
                f"{NATIVE}/ckh128.h",
                f"{NATIVE}/ckh128_keys.inc",
                f"{NATIVE}/ckh128_cpu.hpp",
                f"{NATIVE}/diff.hpp",
                f"{NATIVE}/ranges.hpp",
            ],
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
