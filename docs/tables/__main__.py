"""`make tables`: every table made anew."""

from docs.tables.pages import PAGES, ROOT, filled

for page in PAGES:
    before = page.read_text(encoding="utf-8")
    after = filled(before)
    if after != before:
        page.write_text(after, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: new figures")
