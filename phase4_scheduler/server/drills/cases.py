"""All nights, by their numbers."""

from phase4_scheduler.server.drills.capacity_nights import OUT_OF_MEMORY, THROUGHPUT
from phase4_scheduler.server.drills.latency_nights import FIRST_TOKEN, NEXT_TOKEN
from phase4_scheduler.server.drills.prefix_night import PREFIX_CACHE
from phase4_scheduler.server.drills.purchase_nights import PURCHASE, QUANTISATION

DRILLS = {
    drill.number: drill
    for drill in (FIRST_TOKEN, NEXT_TOKEN, OUT_OF_MEMORY, THROUGHPUT, PREFIX_CACHE, PURCHASE, QUANTISATION)
}
