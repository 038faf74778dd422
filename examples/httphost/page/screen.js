// A screen shows the bytes of a command's two streams as a terminal would print them: UTF-8 whose characters may be cut
// anywhere, carriage returns and backspaces, tabs, and colours. Other control sequences are left out. It keeps the last lines.

const maxLines = 5000;

export class Screen {
  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    this.pending = { stdout: "", stderr: "" }; // the beginning of a control sequence
    this.style = { stdout: "", stderr: "err" };
    this.dirty = new Set();
    this.newLine();
  }

  newLine() {
    this.line = { cells: [], element: document.createElement("div") };
    this.column = 0;
    this.element.append(this.line.element);
    this.dirty.add(this.line);
    while (this.element.childElementCount > maxLines) this.element.firstElementChild.remove();
  }

  // write adds bytes of a stream, and at its end, without bytes, what was cut.
  write(stream, bytes) {
    const text = this.pending[stream] + this.decoders[stream].decode(bytes, { stream: bytes !== undefined });
    this.pending[stream] = "";
    // A character, or a control sequence: CSI … final, OSC … BEL or ST, or two characters.
    const tokens = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^[\]])|[^\x1b]|\x1b[^]*$/gu;
    for (const [token, parameters, final] of text.matchAll(tokens)) {
      if (token[0] !== "\x1b") this.put(stream, token);
      else if (final === "m") this.colour(stream, parameters);
      else if (final === undefined && bytes !== undefined && /^\x1b(?:$|\[[ -?]*$|\][^\x07]{0,999}$)/u.test(token)) this.pending[stream] = token;
    }
    this.draw();
  }

  put(stream, c) {
    switch (c) {
      case "\n": return this.newLine();
      case "\r": this.column = 0; return;
      case "\b": this.column = Math.max(0, this.column - 1); return;
      case "\t":
        do this.put(stream, " "); while (this.column % 8 !== 0);
        return;
    }
    if (c < " " || c === "\x7f") c = "\uFFFD";
    this.line.cells[this.column++] = { c, style: this.style[stream] };
    this.dirty.add(this.line);
  }

  colour(stream, parameters) {
    for (const code of parameters.split(";").map(Number)) {
      const classes = new Set(this.style[stream].split(" ").filter(Boolean));
      const uncoloured = () => classes.forEach((c) => /^c\d$/.test(c) && classes.delete(c));
      if (code === 0) classes.clear(), stream === "stderr" && classes.add("err");
      else if (code === 1) classes.add("bold");
      else if (code === 22) classes.delete("bold");
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) uncoloured(), classes.add("c" + (code % 10));
      else if (code === 39) uncoloured();
      this.style[stream] = [...classes].join(" ");
    }
  }

  draw() {
    const atEnd = this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < 40;
    for (const line of this.dirty) {
      const spans = [];
      for (const cell of line.cells) {
        const last = spans.at(-1);
        if (last && last.className === cell.style) last.textContent += cell.c;
        else spans.push(Object.assign(document.createElement("span"), { className: cell.style, textContent: cell.c }));
      }
      line.element.replaceChildren(...(spans.length ? spans : [document.createElement("br")]));
    }
    this.dirty.clear();
    if (atEnd) this.element.scrollTop = this.element.scrollHeight;
  }
}
