"""`Result`, which every analysis, benchmark and experiment returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffeqformer.plain import Document, clean
from diffeqformer.report.table import Table

if TYPE_CHECKING:  # so that `--help` does not load Matplotlib and NumPy
    import numpy as np

    from diffeqformer.report.page import Animation, Figure, TokenMap


@dataclass(frozen=True)
class Result:
    """The result of a study: sentences, tables, figures and every number, to be shown anywhere."""

    name: str
    """Name of the files, such as `spectra`."""
    title: str
    findings: "tuple[str, ...]"
    """Sentences; the first is the headline."""
    tables: tuple[Table, ...] = ()
    figures: "tuple[Figure, ...]" = ()
    maps: "tuple[TokenMap, ...]" = ()
    animations: "tuple[Animation, ...]" = ()
    arrays: "Mapping[str, np.ndarray]" = field(default_factory=dict)
    """Every number by name, to be written as NPZ."""
    document: Any = field(default_factory=dict)
    """The document that the command prints as JSON."""
    notes: "tuple[str, ...]" = ()
    """How the results were measured, and what terms mean here; shown below figures and tables."""
    folder: Path = Path()
    """Default folder of `write`."""

    def page(self) -> str:
        """Render the HTML of a page that opens offline."""
        from diffeqformer.report import page

        return page.render(**self._shown())

    def write(self, folder: "Path | str | None" = None, *, home: str = "") -> Path:
        """Write the numbers, the figures and the page; returns the path of `index.html`.

        **Arguments:** `folder`; `home`, the address of a page that links to this one, if any.

        **Raises:** `RunFailed` if a file cannot be written.
        """
        from diffeqformer.report import page

        return page.write(self.folder if folder is None else Path(folder), home=home, **self._shown())

    def show(self) -> None:
        """Print the headline and the tables."""
        from rich.console import Console

        console = Console(highlight=False, markup=False)
        console.print(clean(self.findings[0]), soft_wrap=True)
        for table in self.tables:
            console.print()
            console.print(table.to_rich(console.width))

    def _repr_html_(self) -> str:
        from html import escape

        from diffeqformer.report.figures import svg

        said, notes = ("".join(f"<p>{escape(line)}</p>" for line in lines) for lines in (self.findings, self.notes))
        drawn = "".join(one.to_html() for one in self.maps)
        drawn += "".join(svg(one.figure, f"{self.name}-{one.name}", one.caption) for one in self.figures)
        return f"<h3>{escape(self.title)}</h3>{said}{drawn}{''.join(table.to_html() for table in self.tables)}{notes}"

    def _shown(self) -> Document:
        names = ("name", "title", "findings", "notes", "tables", "figures", "maps", "animations", "arrays")
        return {name: getattr(self, name) for name in names}
