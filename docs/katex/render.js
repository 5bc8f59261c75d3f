// KaTeX 0.19.1 (MIT) draws the formulas of a page, which pymdownx.arithmatex marks.
for (const formula of document.querySelectorAll(".arithmatex")) {
  const text = formula.textContent.trim();
  katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\["), throwOnError: false });
}
