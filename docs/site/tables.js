// On narrow screens a table with sentences in it becomes a list: each cell has its column's name.
document.querySelectorAll(".md-typeset table:not([class])").forEach(table => {
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])].map(cell => cell.textContent)
  const cells = [...table.querySelectorAll("td")]
  if (heads.length < 4 || heads.length > 6 || !cells.some(c => c.textContent.length > 60)) return
  table.dataset.sentences = ""
  cells.forEach(cell => { cell.dataset.label = heads[cell.cellIndex] })
})
