"""Every configuration of the tile table compiles for a Hopper GPU, on a machine without one."""

from __future__ import annotations

from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402

from fsresearch.kernels.lm_head_max import epilogue  # noqa: E402
from fsresearch.kernels.lm_head_max import flags as F  # noqa: E402
from fsresearch.kernels.lm_head_max.configs import HOPPER, PLAIN, Config  # noqa: E402
from fsresearch.kernels.matmul import hopper, plain  # noqa: E402

ARGUMENTS = (
    ("*i64", "*i64", "i32", "*fp32", "fp32", "i64"),
    ("fp32", "fp32"),
    ("*fp32", "i64", "*i32", "i64"),
    ("i32", "i32", "i32", "i32"),
    ("*u64", "*u32", "*u32", "*fp32", "*i64", "*fp32", "*fp32", "*i32", "*fp32"),
)
GREEDY, SAMPLED = 0, F.SAMPLED.value
OPTIONS = sum(
    flag.value
    for flag in (
        F.SAMPLED,
        F.TEMPERATURE,
        F.SCALE,
        F.SOFTCAP,
        F.BIAS,
        F.MASK,
        F.PACKED,
        F.LOG_MASS,
        F.MANY_DRAWS,
    )
)
SHARED_MEMORY = 227 * 1024


def compiled(config: Config, flags: int) -> Any:
    """Compile the pipeline of a configuration with the epilogue for bfloat16 operands."""
    flags |= F.PTX.value
    hooks = {
        "OPEN": epilogue.open_rows,
        "PEEK": epilogue.peek,
        "LIFT": epilogue.lift,
        "CLOSE": epilogue.close_rows,
    }
    aligned = [["tt.divisibility", 16]]
    if config.form == "hopper":
        constants = {"FLAGS": flags, **hooks, "STAGES": config.stages}
        signature: dict[str, Any] = {
            "hidden_desc": _descriptor(config.block_b, config.block_d),
            "weight_desc": _descriptor(config.block_v, config.block_d),
            **dict.fromkeys(("num_rows", "num_columns", "depth", "slots"), "i32"),
        }
        kernel, source, wide = hopper.matmul_kernel, GluonASTSource, ["depth"]
        options = {"num_warps": config.warps}
    else:
        constants = {
            "hidden_stride": 1,
            "weight_stride": 1,
            "FLAGS": flags,
            **hooks,
            "BLOCK_B": config.block_b,
            "BLOCK_V": config.block_v,
            "BLOCK_D": config.block_d,
            "EVEN_D": True,
        }
        signature = {
            "hidden_ptr": "*bf16",
            "weight_ptr": "*bf16",
            **dict.fromkeys(("num_rows", "num_columns", "depth"), "i32"),
            "hidden_row_stride": "i64",
            "hidden_stride": "constexpr",
            "weight_row_stride": "i64",
            "weight_stride": "constexpr",
        }
        kernel, source = plain.matmul_kernel, ASTSource
        wide = ["hidden_ptr", "weight_ptr", "depth", "hidden_row_stride", "weight_row_stride"]
        options = {"num_warps": config.warps, "num_stages": config.stages}
    signature["args"] = ARGUMENTS
    signature |= {name: "constexpr" for name in constants if name not in signature}
    names = list(signature)
    built = source(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): aligned for name in wide},
    )
    target = GPUTarget("cuda", 90, 32)
    return triton.compile(built, target=target, options={**options, "enable_fp_fusion": False})


def _descriptor(rows: int, depth: int) -> str:
    layout = gl.NVMMASharedLayout.get_default_for([rows, depth], gl.bfloat16)
    return f"tensordesc<bf16[{rows}, {depth}],{layout!r}>"


@pytest.mark.parametrize("config", [*HOPPER, *PLAIN], ids=str)
def test_greedy(config: Config) -> None:
    assert compiled(config, GREEDY).metadata.shared <= SHARED_MEMORY


@pytest.mark.parametrize("config", [HOPPER[0], PLAIN[0]], ids=str)
def test_sampled(config: Config) -> None:
    kernel = compiled(config, SAMPLED)
    assert kernel.metadata.shared <= SHARED_MEMORY
    assert ("wgmma" in kernel.asm["ptx"]) or config.form == "plain"


@pytest.mark.deep
@pytest.mark.parametrize("config", [*HOPPER, *PLAIN], ids=str)
@pytest.mark.parametrize("flags", [SAMPLED, OPTIONS])
def test_every_configuration(config: Config, flags: int) -> None:
    assert compiled(config, flags).metadata.shared <= SHARED_MEMORY
