// Let a reader paste an error into the search. In the library's query language `audit-0:` names a field, which is an error; a
// quoted text must occur word by word; and `-1` excludes what has a 1. So a message becomes its words, without numbers, and is
// looked up in reference/errors.html, whose texts have the tag TxlogError.
"use strict";
(() => {
  const QUERY = 2, MOST = 60, LONG = 9;
  const query = (text) => {
    const words = text.match(/[\p{L}\p{N}]+/gu) || [];
    const isMessage = words.length >= LONG || (words.length > 2 && /[:;]\s|'[^']*'/.test(text));
    if (!isMessage) return text.replace(/:/g, " ");
    const known = words.filter((word) => !/^\d+$/.test(word)).map((word) => word.toLowerCase());
    return ["+tags:txlogerror", ...new Set(known)].slice(0, MOST).join(" ");
  };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...others) {
    const asks = message && message.type === QUERY && typeof message.data === "string";
    return post.call(this, asks ? { ...message, data: query(message.data) } : message, ...others);
  };
})();
