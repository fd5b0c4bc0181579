// Systems of linear equations. Nothing here needs a library.

/** Solves A x = b for a square matrix and several columns, by elimination with pivots. */
export function solve(matrix, columns) {
  const n = matrix.length;
  const rows = matrix.map((row, i) => [...row, ...columns[i]]);
  for (let at = 0; at < n; at++) {
    let best = at;
    for (let i = at + 1; i < n; i++) if (Math.abs(rows[i][at]) > Math.abs(rows[best][at])) best = i;
    [rows[at], rows[best]] = [rows[best], rows[at]];
    for (let i = at + 1; i < n; i++) {
      const factor = rows[i][at] / rows[at][at];
      if (factor) for (let j = at; j < rows[i].length; j++) rows[i][j] -= factor * rows[at][j];
    }
  }
  for (let at = n - 1; at >= 0; at--) {
    for (let j = n; j < rows[at].length; j++) {
      let value = rows[at][j];
      for (let i = at + 1; i < n; i++) value -= rows[at][i] * rows[i][j];
      rows[at][j] = value / rows[at][at];
    }
  }
  return rows.map((row) => row.slice(n));
}
