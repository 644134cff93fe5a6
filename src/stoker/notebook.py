"""What a notebook shows of an object: a name, a bar and a table, readable on light and dark. Pure; all text is escaped."""

from collections.abc import Mapping
from html import escape

from stoker.units import whole_percents

_COLOURS = ("#009e73", "#e69f00", "#d55e00")
_CELL = 'style="text-align:left;padding:1px 14px 1px 0"'


def card(title: str, rows: Mapping[str, str], parts: Mapping[str, float] | None = None) -> str:
    """HTML for `_repr_html_`. Parts of a whole, three at most, become a bar."""
    lines = [f"<b>{escape(title)}</b>", *([_bar(parts)] if parts else [])]
    cells = "".join(
        f"<tr><th {_CELL}>{escape(name)}</th><td {_CELL}>{escape(value)}</td></tr>" for name, value in rows.items()
    )
    return f'<div style="font-family:system-ui,sans-serif">{"".join(lines)}<table>{cells}</table></div>'


def _bar(parts: Mapping[str, float]) -> str:
    spans = []
    for (name, part), percent, colour in zip(parts.items(), whole_percents([*parts.values()]), _COLOURS, strict=False):
        words = escape(f"{name} {percent} %")
        style = f"flex:{part:.4f} 1 0;background:{colour};color:#000;overflow:hidden;white-space:nowrap;padding:2px 0"
        spans.append(f'<span title="{words}" style="{style}">{words}</span>' if percent else "")
    return f'<div style="display:flex;max-width:40em;text-align:center;margin:4px 0">{"".join(spans)}</div>'
