// What is under the pointer, in words, at once. Without this the browser shows the same by itself.
(function () {
  "use strict";
  var tip = document.getElementById("tip");
  function show(event) {
    var found = event.target.closest ? event.target.closest("[data-tip]") : null;
    if (!found) { tip.style.display = "none"; return; }
    tip.textContent = found.getAttribute("data-tip");
    tip.style.display = "block";
    var box = found.getBoundingClientRect();
    var x = event.clientX === undefined ? box.right : event.clientX;
    var y = event.clientY === undefined ? box.bottom : event.clientY;
    var left = Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8);
    var top = y + 16 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 10 : y + 16;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = Math.max(8, top) + "px";
  }
  var titles = document.querySelectorAll("[data-tip] title, [data-tip] > title");
  Array.prototype.forEach.call(titles, function (title) { title.textContent = ""; });
  document.addEventListener("pointermove", show);
  document.addEventListener("focusin", show);
  document.addEventListener("scroll", function () { tip.style.display = "none"; }, true);
}());
