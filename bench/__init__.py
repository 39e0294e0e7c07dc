"""What measures kvlogd: its speed (`replay`) and how right its verdicts are (`verdicts`). No part of the product."""
