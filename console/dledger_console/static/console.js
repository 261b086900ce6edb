// Start of the console's scripts. Every page works without them: times are then in UTC, and nothing moves by itself.
import { follow } from "./live.js";
import { localize } from "./times.js";

localize(document);
follow(localize);
