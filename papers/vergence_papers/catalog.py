"""Tables and figures of papers that a command of their own measures or draws."""

from __future__ import annotations

MEASURED = {
    "splitfed/table4.1": "python -m benchmarks.bench mpc",
    "splitfed/table4.3": "vergence privacy audit RUN",
    "pezsl/table5.1": "vergence data check zsl_synthetic --root zsl_splits/AWA2",
}
"""Tables that a command of its own measures, whatever is trained."""
ELSEWHERE = {
    "fedcpf/fig1": "vergence report FOLDER --figure tokens",
    "fedcpf/fig2": "vergence report FOLDER --figure overview",
    "adaptive/fig1": "vergence explain EXPERIMENT",
    "sgzsl/table6.1": "vergence explain experiments/zero_shot.toml",
    "splitfed/fig2.2": "vergence explain experiments/unlabelled_cross.toml",
    "splitfed/fig3.2": "vergence explain experiments/splitfed_model_2.toml --set "
    "'privacy.cut={name=\"pixel_dp\",level=2.0}'",
}
"""Pictures of a method rather than of results, and the command that draws them."""
