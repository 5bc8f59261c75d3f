"""`make tables`: every table made anew."""

from docs.tables import PAGES, ROOT, filled

for page in PAGES:
    before = page.read_text(encoding="utf-8")
    if (after := filled(before)) != before:
        page.write_text(after, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: new tables")
