// The page: all trainings, one after the other, and what draws them again.
$("title").textContent = data.title;
$("facts").textContent = data.facts;
$("foot").textContent = data.foot;
const trainings = data.trainings.map(addTraining);
$("trainings").append(...trainings.map((each) => each.element));
if (several) {
  const entries = data.trainings.map(({ name, summary }, number) =>
    make("li", {}, make("a", { href: `#training-${number + 1}` }, name), " ", make("span", { class: "unit" }, summary)));
  $("contents").append(make("ol", {}, ...entries));
}
const draw = () => {
  setTheme();
  for (const training of trainings) {
    drawLoss(training);
    training.own.columns.forEach(drawLegend);
    drawWithin(training, training.element);
  }
};
const views = document.querySelectorAll(".switch input");
for (const input of views)
  input.addEventListener("change", () => {
    relative = input.value === "usual";
    for (const each of views) each.checked = (each.value === "usual") === relative;
    draw();
  });
dark.addEventListener("change", draw);
addEventListener("beforeprint", () => { printing = true; draw(); });
addEventListener("afterprint", () => { printing = false; draw(); });
addEventListener("resize", () => { leave(); draw(); });
addEventListener("scroll", () => pointed && !tip.hidden && !document.activeElement.matches(".plot") && leave(), { passive: true });
draw();
document.documentElement.dataset.drawn = "yes";
