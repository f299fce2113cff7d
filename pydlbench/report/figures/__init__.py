"""The figures of the page, one file each: what they need of records, as Vega-Lite draws it."""
