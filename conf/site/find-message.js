// Which texts of reference/errors.html may a message be? Their values stand as `<name>`, and every other part of a text must occur
// in the message, in this order. A message may be cut off at its end.
"use strict";
const findMessage = (() => {
  const FEW = 3, LONG = 6, NEAR = 0.5, MOST = 5, START = 18, CUT = 0.8;
  const wordsOf = (text) => text.match(/[\p{L}\p{N}]{2,}/gu) || [];
  // A value in quotes may have any quotes.
  const plain = (text) => text.replace(/['"`]/g, "").replace(/\s+/g, " ").trim().toLowerCase();
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  // A text with few words fits only as a whole, or any message with these words would fit.
  const wholeOf = (title) => new RegExp(`(?:^|\\s)${plain(title).split(/<[^<>]*>/).map(escaped).join(".+")}$`);

  // An entry is {title, kind, place}: a text, the name of its error, and whatever finds the entry again.
  const prepare = (entries) => {
    const known = entries.map((entry) => {
      const parts = entry.title.split(/<[^<>]*>/).map(plain).filter((part) => wordsOf(part).length);
      const words = [...new Set(parts.flatMap(wordsOf))];
      return { ...entry, parts, words, whole: words.length <= FEW && wholeOf(entry.title) };
    });
    const often = new Map();
    for (const { words } of known) for (const word of words) often.set(word, (often.get(word) || 0) + 1);
    const weight = (words) => words.reduce((sum, word) => sum + Math.log(1 + known.length / often.get(word)), 0);
    const hasWords = ({ words }) => words.join("").length >= LONG;
    return { known: known.filter(hasWords), often, weight };
  };

  // How long are the parts that the message has? 0 if the text does not fit. What fits only up to the message's end counts less.
  const lengthOf = ({ parts, whole }, text) => {
    if (whole) return whole.test(text) ? parts.join("").length : 0;
    let at = 0, length = 0;
    for (const part of parts) {
      const found = text.indexOf(part, at);
      if (found < 0) {
        let cut = Math.max(at, text.length - part.length + 1);
        while (!part.startsWith(text.slice(cut))) cut += 1;
        const all = length + text.length - cut;
        return all >= START ? CUT * all : 0;
      }
      at = found + part.length;
      length += part.length;
    }
    return length;
  };

  // Return {fits, near}: the entries that fit best, and if there is none, those that have the most words of the message.
  return (message, entries) => {
    const { known, often, weight } = entries.prepared ||= prepare(entries);
    const kinds = new Set(known.map(({ kind }) => kind));
    const named = [...message.matchAll(/(\w+):\s/g)].filter(([, name]) => kinds.has(name)).pop();
    // The last line of a traceback has the message.
    const text = plain((named ? message.slice(named.index + named[0].length) : message).split(/\shint:\s/)[0]);
    const isNamed = (entry) => Boolean(named) && entry.kind === named[1];
    const fitting = known.map((entry) => ({ entry, length: lengthOf(entry, text) })).filter(({ length }) => length);
    fitting.sort((one, other) => other.length - one.length || isNamed(other.entry) - isNamed(one.entry));
    const best = fitting.filter(({ length }) => length === fitting[0].length).slice(0, MOST);
    if (best.length) return { fits: best.map(({ entry }) => entry), near: [] };
    // The others are values.
    const given = new Set(wordsOf(text).filter((word) => often.has(word)));
    const all = weight([...given]);
    const near = known.map((entry) => {
      const words = entry.words.filter((word) => given.has(word)), found = weight(words), own = weight(entry.words);
      const isNear = words.length >= FEW && Math.max(found / own, found / all) >= NEAR;
      return { entry, isNear, score: (found * found) / own };
    }).filter(({ isNear }) => isNear);
    near.sort((one, other) => other.score - one.score || isNamed(other.entry) - isNamed(one.entry));
    return { fits: [], near: near.slice(0, MOST).map(({ entry }) => entry) };
  };
})();
