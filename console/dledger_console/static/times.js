// Times in the reader's own zone: the text of each <time> is replaced, and the time in UTC becomes its tooltip.
const format = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  fractionalSecondDigits: 3,
});

export function localize(root) {
  for (const element of root.querySelectorAll("time[datetime]:not([title])")) {
    element.title = element.textContent;
    element.textContent = format.format(new Date(element.dateTime));
  }
}
