"""`vergence reproduce`: tables of papers run again, beside printed numbers.

What belongs to one paper alone lies in a folder of its own: `tables.toml` (printed numbers and
claims), `experiment.toml` (the runs behind them), `checks.py` (arithmetic of printed numbers) and,
where a paper needs them, `protocol.py` (how its models are scored) and `untrained.py` (tables
without training). This package has what all papers share.
"""

from pathlib import Path

HERE = Path(__file__).parent
# In a clone the folders of the papers lie beside this package; once installed they lie inside it.
HOME = HERE if (HERE / "fedcpf").is_dir() else HERE.parent
__path__.append(str(HOME))
