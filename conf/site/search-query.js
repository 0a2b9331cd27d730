// Let a reader paste an error into the search. In the library's query language `audit-0:` names a field, which is an error; a
// quoted text must occur word by word; and `-1` excludes what has a 1. So a query for a message names tags of the texts that fit in
// reference/errors.html. A setting such as fetch.min.bytes becomes words that must all occur.
"use strict";
(() => {
  const SETUP = 0, QUERY = 2, MOST = 5, MOST_WORDS = 60, LONG = 9;
  const ERRORS = "reference/errors.html#";
  let entries = [];
  const plainText = (html) => new DOMParser().parseFromString(html, "text/html").body.textContent;
  const wordsOf = (text) => text.match(/[\p{L}\p{N}]+/gu) || [];
  const query = (text) => {
    const words = wordsOf(text);
    if (/^[a-z]+(\.[a-z]+)+$/.test(text)) return words.map((word) => `+${word}`).join(" ") + "*";
    const isMessage = words.length >= LONG || (words.length > 2 && /[:;]\s|'[^']*'/.test(text));
    if (!isMessage) return text.replace(/:/g, " ");
    const { fits, near } = findMessage(text, entries);
    const found = [...fits, ...near].slice(0, MOST).map(({ place }, at) => `tags:${place}^${2 ** (MOST - at)}`);
    if (found.length) return found.join(" ");
    const known = words.filter((word) => !/^\d+$/.test(word)).map((word) => word.toLowerCase());
    return ["+tags:txlogerror", ...new Set(known)].slice(0, MOST_WORDS).join(" ");
  };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...others) {
    if (message && message.type === SETUP) {
      const texts = message.data.docs.filter(({ location }) => location.startsWith(ERRORS));
      texts.forEach((text, at) => { text.tags = [...(text.tags || []), `text${at}`]; });
      entries = texts.map(({ title }, at) => ({ title: plainText(title), kind: "", place: `text${at}` }));
    }
    const asks = message && message.type === QUERY && typeof message.data === "string";
    return post.call(this, asks ? { ...message, data: query(message.data) } : message, ...others);
  };
})();
